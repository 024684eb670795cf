# SPDX-License-Identifier: Apache-2.0
"""The n-th open, read, mmap, spawn … of each program fails once: it ends with an error that says so, or does all it had to.

failing_calls.c makes the call fail. For programs that end by themselves n grows until a run has fewer calls than that. By default
some n are left out where there are many; QUIRE_FAULT_ALL=1 tries every one."""
import errno
import json
import os
import re
import subprocess
import urllib.request

import pytest

from servers import BIN, BUNDLED, MODELS, Process

ALL = bool(os.environ.get("QUIRE_FAULT_ALL"))
CALLS = {"open": errno.EMFILE, "read": errno.EIO, "pread": errno.EIO, "mmap": errno.ENOMEM, "memfd_create": errno.ENFILE,
         "ftruncate": errno.ENOSPC, "epoll_create1": errno.EMFILE, "eventfd": errno.EMFILE, "posix_spawn": errno.EAGAIN,
         "fork": errno.EAGAIN, "pthread_create": errno.EAGAIN}
GREEDY = ("--max-tokens", "6", "--temperature", "0", "--num-gpu-blocks-override", "128")
# program: (arguments, standard input)
PROGRAMS = {
    "quire-generate": ((BUNDLED, "Who are you?", *GREEDY), ""),  # its worker is a thread
    "quire-check-model": ((MODELS / "llama", "--program"), ""),
    "quire-tokenize": ((BUNDLED,), "Who are you?\n"),
    "quire-render": ((BUNDLED,), '{"messages": [{"role": "user", "content": "Hi"}]}\n'),
}


def failing(shim, folder, program, call, at):
    told = folder / "told"
    told.unlink(missing_ok=True)
    return told, {**os.environ, "LD_PRELOAD": str(shim), "QUIRE_FAIL_PROGRAM": program, "QUIRE_FAIL_CALL": call,
                  "QUIRE_FAIL_AT": str(at), "QUIRE_FAIL_ERRNO": str(CALLS[call]), "QUIRE_FAIL_TOLD": str(told)}


def once(program, env):
    args, text = PROGRAMS[program]
    return subprocess.run([BIN / program, *map(str, args)], input=text, capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_failing_call_is_an_error_or_nothing(failing_calls, tmp_path, program):
    want = once(program, dict(os.environ))
    assert want.returncode == 0, want.stderr
    n_tried, n_failed = 0, 0
    for call in CALLS:
        at, clean = 0, False
        while not clean:
            told, env = failing(failing_calls, tmp_path, program, call, at)
            done = once(program, env)
            clean = not told.exists()
            where = f"{program}: {call} number {at} fails with {errno.errorcode[CALLS[call]]}"
            if done.returncode == 0:
                assert done.stdout == want.stdout, where
            else:
                assert not clean and 0 < done.returncode < 128, (where, done.returncode, done.stderr[-600:])
                assert re.search(r"\S", done.stderr), where
                n_failed += 1
            n_tried += not clean
            at += 1 if ALL else 1 + at // 2
    print(f"{program}: {n_tried} failing calls, {n_failed} of them ended it")
    assert n_tried > 5


def ask(url):
    body = {"prompt": "Who are you?", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


SERVERS = [("quire-engine", "recvmsg"), ("quire-engine", "epoll_ctl"), ("quire-engine", "memfd_create"), ("quire-engine", "posix_spawn"),
           ("quire-worker", "mmap"), ("quire-frontend", "accept4"), ("quire-frontend", "read"), ("quire-frontend", "writev"),
           ("quire-serve", "fork"), ("quire-serve", "posix_spawn")]
CALLS |= {"recvmsg": errno.ENOMEM, "accept4": errno.EMFILE, "writev": errno.ENOBUFS, "epoll_ctl": errno.ENOSPC}


@pytest.mark.parametrize("program, call", SERVERS)
def test_a_service_survives_a_failing_call(failing_calls, tmp_path, program, call):
    """It starts and answers, at once or after it has restarted a program; or it says at the start what failed."""
    for at in range(0, 64) if ALL else (0, 1, 3, 9):
        told, env = failing(failing_calls, tmp_path, program, call, at)
        process = Process(BIN / "quire", "serve", BUNDLED, "--port", "0", "--num-gpu-blocks-override", "128", env=env)
        try:
            url = process.wait_line(r"listening on (http://\S+)")[1]
            process.wait_line(r"serve: ready")
            answers = {answer_of(url) for _ in range(3)}
            assert len(answers - {None}) == 1, (answers, process.log())
        except AssertionError:
            assert told.exists() and process.exit_code(60) != 0, process.log()
        finally:
            process.stop(60)
        if not told.exists():
            break


def answer_of(url):
    """None: the connection failed, which a client repeats."""
    try:
        return ask(url)
    except OSError:
        return None
