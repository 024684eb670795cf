# SPDX-License-Identifier: Apache-2.0
"""What terra-rollout and rollout.py do about files and servers that fail them: results that could not be written are refused before the
work, what was there before stays, a busy server is asked again, and an interruption is one line."""
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from servers import Server
from terra import (ACTIONS, CASES, DATA, OPTIONS, PATCHES, PLUGIN, ROLLOUT, ROLLOUT_PY, arrays_of, read_npy, write_npy)

CASE = "two_context_frames"


@pytest.fixture
def files(tmp_path):
    context, actions, _ = arrays_of(CASES[CASE])
    return write_npy(tmp_path / "context.npy", context, "i"), write_npy(tmp_path / "actions.npy", actions)


def words_of(program, where, files, out, *options):
    words = [ROLLOUT, where, "--plugin", PLUGIN] if program == "c" else [sys.executable, ROLLOUT_PY, "--url", where]
    return [str(word) for word in (*words, "--context", files[0], "--actions", files[1], "--out", out, *options)]


def run(*args):
    done = subprocess.run(words_of(*args), capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def nowhere():
    """An engine that is never reached: a folder that is no model, a port on which nothing listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return {"c": "/no/such/model", "http": f"http://127.0.0.1:{s.getsockname()[1]}"}


@pytest.mark.parametrize("program", ["c", "http"])
def test_results_that_cannot_be_written_are_refused_before_the_work(tmp_path, files, nowhere, program):
    where, picture = nowhere[program], tmp_path / "a.ppm"
    old = tmp_path / "old.npy"
    old.write_text("from the last time")
    (tmp_path / "old.npy.part").mkdir()
    for out, options, says in ((tmp_path / "none/a.npy", (), "No such file or directory"), (tmp_path, (), "Is a directory"),
                               (old, (), "Is a directory"), (tmp_path / ("n" * 300), (), "File name too long"),
                               (tmp_path / "a.npy", ("--picture", tmp_path / "none/a.ppm"), "No such file or directory"),
                               (tmp_path / "a.npy", ("--picture", picture, "--columns", "5"),
                                f"--columns 5 does not divide {PATCHES}, the patches of a frame")):
        done = run(program, where, files, out, *options)
        assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert old.read_text() == "from the last time"
    done = run(program, where, files, old.with_name("new.npy"), "--picture", picture)
    assert done.returncode in (1, 3) and not done.stderr.startswith("terra-rollout: /tmp")  # it got as far as the engine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actions.npy", "context.npy", "old.npy", "old.npy.part"]


@pytest.fixture(scope="module")
def server():
    """One request runs, one waits: the next is refused."""
    server = Server(DATA / "model", *OPTIONS, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("program", ["c", "http"])
def test_results(tmp_path, files, server, program):
    """In place of an old file, through a link, and to what is no file; a device that is full is an error."""
    where = DATA / "model" if program == "c" else server.url
    want, new = arrays_of(CASES[CASE])[2], tmp_path / "new.npy"
    new.write_text("old")
    (tmp_path / "link.npy").symlink_to(new)
    done = run(program, where, files, tmp_path / "link.npy", "--frames", "2")
    assert done.returncode == 0 and read_npy(new) == ((1, 2, PATCHES), want[:2 * PATCHES]), done.stderr
    assert (tmp_path / "link.npy").is_symlink() and not list(tmp_path.glob("*.part"))
    assert run(program, where, files, "/dev/null", "--frames", "1").returncode == 0 and not os.path.isfile("/dev/null")
    for options in (("/dev/full",), (new, "--picture", "/dev/full")):
        done = run(program, where, files, *options, "--frames", "1")
        assert done.returncode == 1 and "/dev/full: it cannot be written: No space left on device" in done.stderr, done.stderr


def test_a_busy_server_is_asked_again(tmp_path, files, server):
    done = run("http", server.url, files, tmp_path / "new.npy", "--rollouts", "6", "--frames", "2")
    assert done.returncode == 0, done.stderr
    want = arrays_of(CASES[CASE])[2][:2 * PATCHES]
    assert read_npy(tmp_path / "new.npy") == ((6, 2, PATCHES), want * 6)


def test_an_interruption(tmp_path, files):
    """Of one that waits for a server which does not answer."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        program = subprocess.Popen(words_of("http", url, files, tmp_path / "new.npy", "--model", "m"), stderr=subprocess.PIPE, text=True)
        connection, _ = listening.accept()  # it has asked
        with connection:
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=30)
    assert program.returncode == 130 and "interrupted" in err and "Traceback" not in err, err
    assert not (tmp_path / "new.npy").exists()


@pytest.mark.parametrize("words", [("--rollouts", "-2"), ("--frames", "-1"), ("--columns", "-4"), ("--seed", "0.5"), ("--rollouts", "2000")],
                         ids="=".join)
@pytest.mark.parametrize("program", ["c", "http"])
def test_numbers_that_are_none(tmp_path, files, nowhere, program, words):
    done = run(program, nowhere[program], files, tmp_path / "new.npy", *words)
    assert done.returncode == 2 and words[0] in done.stderr and words[1] in done.stderr, done.stderr


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, 0.5, -2])
@pytest.mark.parametrize("program", ["c", "http"])
def test_tokens_that_are_none(tmp_path, nowhere, program, number):
    import struct
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': (1, {PATCHES}), }}".encode().ljust(117) + b"\n"
    path = tmp_path / "context.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack(f"<{PATCHES}d", 1, number, *[1] * (PATCHES - 2)))
    actions = write_npy(tmp_path / "actions.npy", [[[0.5] * 3] * ACTIONS] * 2)
    done = run(program, nowhere[program], (path, actions), tmp_path / "new.npy")
    assert done.returncode == 1 and "number 1 is" in done.stderr and "expected token ids from 0" in done.stderr, done.stderr


def test_urls_that_are_none(tmp_path, files):
    for url in ("http://[x", "http://127.0.0.1:99999", "nowhere.invalid:1", "http://a b/"):
        done = run("http", url, files, tmp_path / "new.npy")
        assert done.returncode == 1 and done.stderr.startswith("rollout.py: "), done.stderr


def test_the_server_says_why(tmp_path, files, server):
    """Which rollout and which frame."""
    bad = write_npy(tmp_path / "bad.npy", [[[10 ** 6] * PATCHES]], "i")
    done = run("http", server.url, (bad, files[1]), tmp_path / "new.npy", "--rollouts", "2")
    assert done.returncode == 1 and "frame 0: the server answers 400" in done.stderr and "1000000" in done.stderr, done.stderr
    done = run("c", DATA / "model", (bad, files[1]), tmp_path / "new.npy")
    assert done.returncode == 1 and "rollout 0, frame 0: the request is refused: " in done.stderr and "1000000" in done.stderr, done.stderr
