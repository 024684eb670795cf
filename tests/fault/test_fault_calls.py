# SPDX-License-Identifier: Apache-2.0
"""The n-th allocation, open, read, mmap, spawn, send of each program fails once: it ends with an error that says so, or does all it
had to.

failing_calls.c makes the call fail. For programs that end by themselves n grows until a run has fewer calls than that; QUIRE_FAULT_ALL=1
tries every n and more calls, otherwise n triples or grows by more. A batch that a failing call has ended is complete after the same
command again."""
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request

import pytest

from servers import BIN, BUNDLED, HANG_S, MODELS, Process

ALL = bool(os.environ.get("QUIRE_FAULT_ALL"))
CALLS = {"malloc": errno.ENOMEM, "open": errno.EMFILE, "read": errno.EIO, "pread": errno.EIO, "write": errno.ENOSPC,
         "mmap": errno.ENOMEM, "memfd_create": errno.ENFILE, "ftruncate": errno.ENOSPC, "epoll_create1": errno.EMFILE,
         "epoll_ctl": errno.ENOSPC, "eventfd": errno.EMFILE, "posix_spawn": errno.EAGAIN, "fork": errno.EAGAIN,
         "pthread_create": errno.EAGAIN, "socket": errno.EMFILE, "send": errno.ENOBUFS, "recv": errno.ENOMEM,
         "sendmsg": errno.ENOBUFS, "recvmsg": errno.ENOMEM, "accept4": errno.EMFILE, "writev": errno.ENOBUFS}
BLOCKS = ("--num-gpu-blocks-override", "128")
GREEDY = ("--max-tokens", "6", "--temperature", "0", *BLOCKS)
QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}
LINES = "".join(json.dumps({"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions", "body": {
    "prompt": f"{i} is", "max_tokens": 6, "temperature": 0}}) + "\n" for i in range(4))


class Program:
    """A program that ends by itself. Of the processes that it starts, `victim` may be the one whose calls fail."""
    calls, step, at_least = tuple(CALLS), 3, 5

    def __init__(self, name, *args, text="", victim=None):
        self.command, self.text, self.victim = [str(a) for a in (BIN / name, *args)], text, victim or name

    def run(self, folder, env):
        """(exit code, result, messages)"""
        done = subprocess.run(self.command, input=self.text, capture_output=True, text=True, timeout=240, env=env)
        return done.returncode, done.stdout, done.stderr

    def finish(self, folder):
        """After a failure: the result of what a user does about it."""
        return self.run(folder, dict(os.environ))[1]

    def close(self):
        """At the end."""


class Few(Program):
    calls = tuple(CALLS) if ALL else ("malloc", "open", "read", "write", "mmap")
    step, at_least = 4, 2


class Keygen(Few):
    """Keys are random: which files there are, and for whom. A user removes what a failure left."""
    def run(self, folder, env):
        keys = folder / "keys"
        shutil.rmtree(keys, ignore_errors=True)
        done = subprocess.run([*self.command, keys], capture_output=True, text=True, timeout=60, env=env)
        files = sorted((str(p.relative_to(keys)), p.stat().st_mode) for p in keys.rglob("*")) if keys.exists() else []
        return done.returncode, files if done.returncode == 0 else [], done.stderr


class Replay(Few):
    calls = tuple(CALLS) if ALL else ("malloc", "open", "mmap", "memfd_create", "ftruncate", "posix_spawn")

    def __init__(self, victim):
        super().__init__("quire-replay", victim=victim)

    def run(self, folder, env):
        file = folder / "steps"
        if not file.exists():
            process = Process(BIN / "quire", "serve", BUNDLED, "--port", "0", *BLOCKS, "--record", file)
            ask(process.wait_line(r"listening on (http://\S+)")[1])
            process.stop(60)
        done = subprocess.run([*self.command, file], capture_output=True, text=True, timeout=120, env=env)
        return done.returncode, done.stdout, done.stderr


class Batch(Program):
    calls = tuple(CALLS) if ALL else ("malloc", "open", "read", "mmap", "ftruncate", "posix_spawn", "fork", "recv")
    step = 5

    def __init__(self, victim):
        super().__init__("quire-run-batch", BUNDLED, *BLOCKS, victim=victim)

    def run(self, folder, env, again=False):
        out = folder / "out"
        if not again:
            out.unlink(missing_ok=True)
        (folder / "in").write_text(LINES)
        done = subprocess.run([*self.command, "-i", folder / "in", "-o", out], capture_output=True, text=True, timeout=240, env=env)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        result = sorted((r["custom_id"], r["response"]["body"]["choices"][0]["text"]) for r in lines if r["response"])
        return done.returncode, result, done.stderr

    def finish(self, folder):
        return self.run(folder, dict(os.environ), again=True)[1]


class Bench(Few):
    """What was measured, without the figures. `of`: a list in each result, or a number that is no time."""
    calls = tuple(CALLS) if ALL else ("malloc", "open", "read", "mmap", "pthread_create")

    def __init__(self, verb, *args, of):
        super().__init__("quire-bench", verb, *args, "--json", "-")
        self.of = of

    def run(self, folder, env):
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=240, env=env)
        results = json.loads(done.stdout)["results"] if done.returncode == 0 else []
        return done.returncode, [[r[name] for name in self.of] for r in results], done.stderr


class Load(Bench):
    """quire bench serve: of a server that runs meanwhile, whose answers to others are whole."""
    calls = tuple(CALLS) if ALL else ("malloc", "socket", "send", "recv", "epoll_create1", "epoll_ctl")
    server = None

    def run(self, folder, env):
        if not self.server:
            self.server = Process(BIN / "quire", "serve", BUNDLED, "--port", "0", *BLOCKS)
            url = self.server.wait_line(r"listening on (http://\S+)")[1]
            self.server.wait_line("serve: ready")
            self.command += ["--base-url", url]
        return super().run(folder, env)

    def close(self):
        if self.server:
            self.server.stop(60)


class Cache(Few):
    """Of two models; the second has a damaged file, and `quire cache rm` removes the first. The result has what is left, too."""
    def __init__(self, *args):
        super().__init__("quire-cache", *args)

    def run(self, folder, env, again=False):
        cache = folder / "hub"
        if not again:
            shutil.rmtree(cache, ignore_errors=True)
            for name, text in (("one", b"{}"), ("two", b"[]" * 3000)):
                add_to_cache(cache / f"models--org--{name}", text, damaged=name == "two")
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=60, env={**env, "HF_HUB_CACHE": str(cache)})
        left = sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if ".locks" not in p.parts)
        code = 0 if done.returncode == 1 and "1 damaged" in done.stdout and not done.stderr else done.returncode
        return code, (done.stdout.replace(str(cache), "CACHE"), left), done.stderr

    def finish(self, folder):
        return self.run(folder, dict(os.environ), again=self.command[1] == "rm")[1]


def add_to_cache(repo, text, damaged):
    for name in ("blobs", "refs", "snapshots/" + "a" * 40):
        (repo / name).mkdir(parents=True)
    blob = hashlib.sha1(b"blob %d\0%s" % (len(text), text)).hexdigest()
    (repo / "blobs" / blob).write_bytes(b"x" + text[1:] if damaged else text)
    (repo / "refs/main").write_text("a" * 40)
    (repo / "snapshots" / ("a" * 40) / "config.json").symlink_to(f"../../blobs/{blob}")


class Schema(Program):
    """Without its times."""
    def run(self, folder, env):
        code, out, said = super().run(folder, env)
        lines = [json.loads(line) for line in out.splitlines()]
        return code, [{k: v for k, v in line.items() if not re.search("_ms$|_us", k)} for line in lines], said


GRAMMARS = ({"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
             "texts": ['{"a": 1}', '{"a": "x"}'], "sample": 1, "tokens": 4},
            {"grammar": 'root ::= "yes" | "no" [0-9]{2,40}', "texts": ["yes", "no1", "no12"]}, {"regex": "[a-z]+(", "texts": []})
FAST = ("--load-format", "dummy", "--no-roofline", "--input-len", "8", "--output-len", "3")


PROGRAMS = {
    "bench latency": Bench("latency", MODELS / "llama", *FAST, "--repeats", "1", of=("batch_size", "input_len", "output_len")),
    "bench throughput": Bench("throughput", MODELS / "llama", *FAST, "--num-prompts", "2",
                              of=("num_requests", "total_input_tokens", "total_output_tokens")),
    "bench serve": Load("serve", "--num-prompts", "2", "--input-len", "8", "--output-len", "3", "--num-warmups", "0",
                        of=("completed", "failed", "total_input_tokens", "total_output_tokens")),
    "cache ls": Cache("ls"),
    "cache verify": Cache("verify"),
    "cache rm": Cache("rm", "org/one"),
    "schema": Schema("quire-schema", BUNDLED, text="".join(json.dumps(g) + "\n" for g in GRAMMARS)),
    "generate": Program("quire-generate", BUNDLED, "Who are you?", *GREEDY),  # its worker is a thread
    "check-model": Program("quire-check-model", MODELS / "llama", "--program"),
    "tokenize": Program("quire-tokenize", BUNDLED, text="Who are you?\n"),
    "render": Program("quire-render", BUNDLED, text=json.dumps(QUESTION) + "\n"),
    "parse": Program("quire-parse", BUNDLED, text='{"text": "Hi"}\n'),
    "chat": Few("quire-chat", BUNDLED, *GREEDY, text="Hi\n"),
    "keygen": Keygen("quire-keygen"),
    "replay": Replay("quire-replay"),
    "worker of replay": Replay("quire-worker"),
    "run-batch": Batch("quire-run-batch"),
    "engine": Batch("quire-engine"),
    "worker": Batch("quire-worker"),
}
CRASH = r"killed by signal (4|6|7|8|11)\b"  # of a child
LIBZMQ = r"src/\w+\.c(pp)?:\d+"  # it ends its process when a descriptor of its own fails; what was lost has to be made good


def failing(shim, folder, program, call, at):
    told = folder / "told"
    told.unlink(missing_ok=True)
    return told, {**os.environ, "LD_PRELOAD": str(shim), "QUIRE_FAIL_PROGRAM": program, "QUIRE_FAIL_CALL": call,
                  "QUIRE_FAIL_AT": str(at), "QUIRE_FAIL_ERRNO": str(CALLS[call]), "QUIRE_FAIL_TOLD": str(told)}


def check(program, folder, want, done, where):
    """True if the failing call ended the program."""
    code, result, said = done
    assert not re.search(CRASH, said) or re.search(LIBZMQ, said), (where, said[-600:])
    if code == 0:
        assert result == want, (where, said[-600:])
        return False
    assert 0 < code < 128 or re.search(LIBZMQ, said), (where, code, said[-600:])
    assert re.search(r"\S", said), where
    assert program.finish(folder) == want, where
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_failing_call_is_an_error_or_nothing(failing_calls, tmp_path, name):
    program = PROGRAMS[name]
    try:
        check_every_call(program, name, failing_calls, tmp_path)
    finally:
        program.close()


def test_chat_ends_when_a_line_of_its_servers_log_is_lost(failing_calls, tmp_path):
    """The line may be the one that it waits for: allocations 60 to 290 are of lines."""
    for at in (100, 150, 200):
        told, env = failing(failing_calls, tmp_path, "quire-chat", "malloc", at)
        code, _, said = PROGRAMS["chat"].run(tmp_path, env)
        assert told.exists() and 0 < code < 128 and "the server's log: " in said, (at, code, said)


def check_every_call(program, name, failing_calls, tmp_path):
    code, want, said = program.run(tmp_path, dict(os.environ))
    assert code == 0 and want, said
    n_tried, n_failed = 0, 0
    for call in program.calls:
        at, clean = 0, False
        while not clean:
            told, env = failing(failing_calls, tmp_path, program.victim, call, at)
            done = program.run(tmp_path, env)
            clean = not told.exists()
            where = f"{program.victim}: {call} number {at} fails with {errno.errorcode[CALLS[call]]}"
            n_failed += check(program, tmp_path, want, done, where)
            n_tried += not clean
            at = at + 1 if ALL else program.step * (at + 1) - 1
    print(f"{name}: {n_tried} failing calls, {n_failed} of them ended it")
    assert n_tried > program.at_least


def ask(url):
    body = {"prompt": "Who are you?", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


SERVERS = [("quire-engine", "recvmsg"), ("quire-engine", "epoll_ctl"), ("quire-engine", "memfd_create"), ("quire-engine", "posix_spawn"),
           ("quire-worker", "mmap"), ("quire-frontend", "accept4"), ("quire-frontend", "read"), ("quire-frontend", "writev"),
           ("quire-frontend", "malloc"), ("quire-engine", "malloc"), ("quire-serve", "malloc"), ("quire-serve", "fork"),
           ("quire-serve", "posix_spawn")]


@pytest.mark.parametrize("program, call", SERVERS)
def test_a_service_survives_a_failing_call(failing_calls, tmp_path, program, call):
    """It starts and answers, at once or after it has restarted a program; or it says at the start what failed."""
    for at in range(0, 64) if ALL else (0, 1, 3, 9):
        told, env = failing(failing_calls, tmp_path, program, call, at)
        process = Process(BIN / "quire", "serve", BUNDLED, "--port", "0", *BLOCKS, env=env)
        try:
            url = process.wait_line(r"listening on (http://\S+)")[1]
            process.wait_line(r"serve: ready")
            answers = [answer_of(url, process) for _ in range(3)]
            assert len(set(answers)) == 1, (answers, process.log())
        except AssertionError:
            assert told.exists() and process.exit_code(60) != 0, process.log()
        finally:
            process.stop(60)
        assert not re.search(CRASH, process.log()) or re.search(LIBZMQ, process.log()), process.log()
        if not told.exists():
            break


def answer_of(url, process):
    """A connection that failed is repeated by its client, a little later: libuv closes all that connect while descriptors are short, and
    a program that ended is started again."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            return ask(url)
        except OSError:
            assert time.monotonic() < deadline and process.process.poll() is None, "no answer"
            time.sleep(0.1)
