# SPDX-License-Identifier: Apache-2.0
"""Engine and frontend started by hand: tcp with CURVE keys, without, and with models that differ."""
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest

from servers import BIN, HANG_S, MODELS, Http

ENGINE = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def keys(tmp_path):
    out = subprocess.run([BIN / "quire", "keygen", tmp_path / "keys"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    again = subprocess.run([BIN / "quire", "keygen", tmp_path / "keys"], capture_output=True, text=True)
    assert again.returncode == 1, "keys were overwritten"
    return tmp_path / "keys"


def test_keygen_names_its_folder_as_json(tmp_path):
    folder = tmp_path / 'a "b"\\c\nd\u00e9'
    out = subprocess.run([BIN / "quire", "keygen", folder, "--json"], capture_output=True, text=True)
    told = json.loads(out.stdout)
    assert told["dir"] == str(folder) and all((folder / name).exists() for name in told["files"]) and len(told["files"]) == 4
    # bytes that are not UTF-8 are replaced: the line is JSON in any case
    odd = bytes(tmp_path) + b"/k\xff\x01\xc3"
    out = subprocess.run([BIN / "quire", "keygen", odd, "--json"], capture_output=True)
    assert json.loads(out.stdout.decode())["dir"] == f"{tmp_path}/k\ufffd\x01\ufffd" and (os.listdir(odd))
    with open("/dev/full", "wb") as full:
        lost = subprocess.run([BIN / "quire", "keygen", tmp_path / "lost", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert lost.returncode == 1 and "cannot write to standard output" in lost.stderr


def frontend(run, *options):
    process = run("quire-frontend", *options, "--port", "0", "--engine-timeout", "2")
    server = Http(process.wait_line(r"listening on (http://\S+)")[1])
    server.process = process
    return server


def test_tcp_with_keys(run, keys, tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    run("quire-engine", MODELS / "llama", "--listen", address, "--keys", keys, *ENGINE)
    server = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--keys", keys)
    server.process.wait_line(r"frontend: ready")
    assert len(server.complete([1, 2, 3], max_tokens=4, ignore_eos=True)["choices"][0]["token_ids"]) == 4

    subprocess.run([BIN / "quire", "keygen", tmp_path / "other"], check=True, stdout=subprocess.DEVNULL)
    stranger = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--keys", tmp_path / "other")
    assert stranger.post("/v1/completions", {"prompt": [1], "max_tokens": 1})[0] == 503
    assert server.complete([1, 2, 3], max_tokens=1)["usage"]["completion_tokens"] == 1


def reason(server, word):
    """What /ready says when a word is in it."""
    deadline = time.monotonic() + HANG_S
    while word not in server.get("/ready")[1]:
        assert time.monotonic() < deadline, server.get("/ready")
        time.sleep(0.05)
    return json.loads(server.get("/ready")[1])


@pytest.mark.parametrize("kind, at_engine, at_frontend", [
    ("frontend.key", "a frontend's key is not the frontend.pub of --keys", "the engine does not accept the frontend.key of --keys"),
    ("engine.pub", "a frontend has the public key of another engine",
     "the engine closed the connection while keys were exchanged: engine.pub in --keys may be of another engine"),
    ("none", "a peer without keys (--keys) tried to connect", "the engine requires keys (--keys)")])
def test_wrong_keys_are_told_at_both_ends(run, keys, tmp_path, kind, at_engine, at_frontend):
    """In the logs and at /ready, with the reason; and when the keys are right the frontend is ready."""
    other = tmp_path / "other"
    subprocess.run([BIN / "quire", "keygen", other], check=True, stdout=subprocess.DEVNULL)
    if kind == "frontend.key":
        (other / "engine.pub").write_bytes((keys / "engine.pub").read_bytes())
    elif kind == "engine.pub":
        for name in ("frontend.key", "frontend.pub"):
            (other / name).write_bytes((keys / name).read_bytes())
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = run("quire-engine", MODELS / "llama", "--listen", address, "--keys", keys, *ENGINE)
    options = ("--insecure-tcp",) if kind == "none" else ("--keys", other)
    server = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, *options)
    engine.wait_line("WARNING engine: " + re.escape(f"{address}: a connection was refused: {at_engine}"))
    server.process.wait_line("ERROR +frontend: link: " + re.escape(f"the connection to {address} is refused: {at_frontend}"))
    told = reason(server, "engine_keys")
    assert told["status"] == "not ready" and told["codes"] == ["engine_keys"] and at_frontend in told["reasons"][0]
    assert len([line for line in engine.log().splitlines() if "a connection was refused" in line]) < 30 # rate-limited
    good = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--keys", keys)
    good.process.wait_line("frontend: ready")


def test_keys_that_are_replaced_at_the_engine(run, keys, tmp_path):
    """The frontend that was refused connects when the engine comes back with its key."""
    other = tmp_path / "other"
    subprocess.run([BIN / "quire", "keygen", other], check=True, stdout=subprocess.DEVNULL)
    (other / "engine.pub").write_bytes((keys / "engine.pub").read_bytes())
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = run("quire-engine", MODELS / "llama", "--listen", address, "--keys", keys, *ENGINE)
    server = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--keys", other)
    reason(server, "engine_keys")
    engine.stop()
    (keys / "frontend.pub").write_bytes((other / "frontend.pub").read_bytes())
    run("quire-engine", MODELS / "llama", "--listen", address, "--keys", keys, *ENGINE)
    server.process.wait_line("frontend: ready")


def test_tcp_needs_keys(run):
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = run("quire-engine", MODELS / "llama", "--listen", address, *ENGINE)
    assert engine.exit_code() == 2 and "keys" in engine.log()
    front = run("quire-frontend", MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--port", "0")
    assert front.exit_code() == 2 and "keys" in front.log()


def test_insecure_tcp_when_meant(run):
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = run("quire-engine", MODELS / "llama", "--listen", address, "--insecure-tcp", *ENGINE)
    engine.wait_line(r"WARNING engine: tcp://.*:\d+: tcp without keys")
    server = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--insecure-tcp")
    server.process.wait_line(r"frontend: ready")
    assert server.complete([1, 2, 3], max_tokens=1)["usage"]["completion_tokens"] == 1


def test_an_engine_that_is_not_there_is_told_of(run):
    """Before a request has waited for it in vain."""
    server = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", "tcp://nosuch.invalid:5", "--insecure-tcp")
    server.process.wait_line(r"WARNING frontend: link: no engine has answered at tcp://nosuch.invalid:5 yet")


def test_another_model_is_refused(run, tmp_path):
    address = f"ipc://{tmp_path}/engine"
    run("quire-engine", MODELS / "llama", "--listen", address, *ENGINE)
    server = frontend(run, MODELS / "qwen2", "--skip-tokenizer-init", "--engine", address)
    server.process.wait_line(r"model.*differs")
    deadline = time.monotonic() + HANG_S
    while "differs" not in server.get("/ready")[1]:
        assert time.monotonic() < deadline, server.get("/ready")
    status, answer = server.post("/v1/completions", {"prompt": [1], "max_tokens": 1})
    assert status == 503 and "differs" in answer["error"]["message"]
    good = frontend(run, MODELS / "llama", "--skip-tokenizer-init", "--engine", address)
    good.process.wait_line(r"frontend: ready")


def test_frontend_before_engine(run, tmp_path):
    """A request that comes before there is an engine waits for it."""
    address = f"ipc://{tmp_path}/engine"
    process = run("quire-frontend", MODELS / "llama", "--skip-tokenizer-init", "--engine", address, "--port", "0")
    server = Http(process.wait_line(r"listening on (http://\S+)")[1])
    deadline = time.monotonic() + HANG_S
    while "loading" in server.get("/ready")[1]:
        assert time.monotonic() < deadline
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.complete([1, 2], max_tokens=3, ignore_eos=True)))
    thread.start()
    time.sleep(0.5)
    run("quire-engine", MODELS / "llama", "--listen", address, *ENGINE)
    thread.join(HANG_S)
    assert answers[0]["usage"]["completion_tokens"] == 3
