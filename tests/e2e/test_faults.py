# SPDX-License-Identifier: Apache-2.0
"""Programs that die, cannot be started, or are missing for a while; whose fault it is, and what clients see."""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import threading
import time

import pytest

from servers import BIN, BUNDLED, HANG_S, MODELS, Http, Process

# One thread: on a machine that is busy with other things two of them mostly wait for each other.
OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100", "--threads", "1")
PROGRAMS = ("quire", "quire-serve", "quire-frontend", "quire-engine", "quire-worker")


class Copied(Http):
    """A server of copied programs, which a test may replace."""

    def __init__(self, folder, model, *options):
        for name in PROGRAMS:
            shutil.copy2(BIN / name, folder / name)
        self.folder = folder
        self.process = Process(folder / "quire", "serve", model, "--port", "0", *options)
        super().__init__(self.process.wait_line(r"listening on (http://\S+)")[1])
        self.process.wait_line(r"serve: ready")

    def engine(self):
        """The process id of the engine that runs now."""
        return self.process.wait_children("quire-engine")[0]

    def worker(self, engine):
        """The process id of the engine's worker; an engine that has just started has none yet."""
        return self.process.wait_children("quire-worker", of=engine)[0]

    def replace(self, name, text=None):
        """text: the script that takes the program's place; None: the program itself."""
        if text is None:
            shutil.copy2(BIN / name, self.folder / (name + ".new"))
        else:
            (self.folder / (name + ".new")).write_text(text)
            (self.folder / (name + ".new")).chmod(0o755)
        os.rename(self.folder / (name + ".new"), self.folder / name)


@pytest.fixture
def copied(tmp_path):
    servers = []

    def begin(*args):
        servers.append(Copied(tmp_path, *args))
        return servers[-1]
    yield begin
    for server in servers:
        server.process.stop()


LONG = 1900  # tokens of a stream of the bundled model that goes on when something happens to it: it takes seconds


def tokens(server, seed, n=200, begun=None):
    """Of a seeded stream, and the error event that ended it, if one did; [DONE] has to follow. begun: set with the first tokens."""
    connection, answer = server.raw("POST", "/v1/completions", {
        "prompt": [5, 7, seed + 1], "max_tokens": n, "ignore_eos": True, "stream": True, "seed": seed, "temperature": 1,
        "return_token_ids": True})
    if answer.status == 409:  # nothing was sent yet
        return [], json.loads(answer.read())["error"]
    assert answer.status == 200
    found, error, done = [], None, False
    for line in answer:
        assert not done or not line.strip()
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            error = event["error"]
        else:
            found += event["choices"][0]["token_ids"]
            if begun:
                begun.set()
    connection.close()
    assert done
    return found, error


def submit(pool, server, seeds, n):
    """Streams that have all begun."""
    begun = [threading.Event() for _ in seeds]
    streams = [pool.submit(tokens, server, seed, n, event) for seed, event in zip(seeds, begun)]
    assert all(event.wait(HANG_S) for event in begun)
    return streams


def test_kills_of_the_engine_from_outside(copied):
    """More of them than crashes are allowed, each as soon as there is an engine, or a little later."""
    server = copied(BUNDLED, *OPTIONS)
    want = [tokens(server, seed, 400)[0] for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        streams = submit(pool, server, range(4), 400)
        for _ in range(8):
            engine = server.engine()
            os.kill(engine, signal.SIGKILL)
            while engine in server.process.children("quire-engine"):
                time.sleep(0.01)
            time.sleep(0.16)
        assert [s.result(HANG_S) for s in streams] == [(w, None) for w in want]


def test_a_program_that_is_missing_for_a_while(copied):
    server = copied(BUNDLED, *OPTIONS)
    want = tokens(server, 3, 400)[0]
    for name in ("quire-engine", "quire-worker"):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stream, = submit(pool, server, [3], 400)
            engine = server.engine()
            victim = engine if name == "quire-engine" else server.worker(engine)
            os.rename(server.folder / name, server.folder / (name + ".old"))
            mark = len(server.process.lines)
            os.kill(victim, signal.SIGKILL)
            server.process.wait_line(r"No such file|does not exist", start=mark)
            os.rename(server.folder / (name + ".old"), server.folder / name)
            assert stream.result(HANG_S) == (want, None)


def test_an_engine_that_cannot_come_back(copied):
    """Open streams end with an error event and [DONE] when the supervisor gives up, not at the end of --shutdown-timeout."""
    server = copied(BUNDLED, *OPTIONS, "--shutdown-timeout", "3600", "--engine-timeout", "3600")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream, = submit(pool, server, [3], LONG)
        engine = server.engine()
        os.kill(engine, signal.SIGSTOP)  # the stream gets no further
        server.replace("quire-engine", "#!/bin/sh\nexit 9\n")
        os.kill(engine, signal.SIGKILL)
        found, error = stream.result(HANG_S)
    assert error and "the engine has failed" in error["message"], error
    assert server.process.exit_code() == 9
    assert "too many failures" in server.process.log()


@pytest.mark.parametrize("path, field, begun, ended, failed", [
    ("/v1/responses", "input", ["response.output_item.added", "response.content_part.added"],
     ["response.output_text.done", "response.content_part.done", "response.output_item.done"], ["response.failed", "error"]),
    ("/v1/messages", "messages", ["content_block_start"], ["content_block_stop"], ["error"])])
def test_dialects_when_an_engine_cannot_come_back(copied, path, field, begun, ended, failed):
    """The open item ends; their last events tell the error, in their own form."""
    server = copied(BUNDLED, "--num-gpu-blocks-override", "256", "--shutdown-timeout", "3600", "--engine-timeout", "3600")
    connection, answer = server.raw("POST", path, {field: [{"role": "user", "content": "Who are you?"}], "stream": True, "ignore_eos": True})
    assert answer.status == 200
    lines = []
    while not lines or "delta" not in lines[-1]:
        lines.append(answer.readline().decode().strip())
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)  # the stream gets no further
    server.replace("quire-engine", "#!/bin/sh\nexit 9\n")
    os.kill(engine, signal.SIGKILL)
    lines = [line for line in [*lines, *(line.decode().strip() for line in answer)] if line and not line.startswith(":")]
    connection.close()
    names = [line.removeprefix("event: ") for line in lines[::2]]
    last = ended + failed
    assert names[-len(last):] == last and not set(last) & set(names[:-len(last)])
    assert [name for name in names if name in begun] == begun
    for data in lines[1::2][-len(failed):]:
        told = json.loads(data.removeprefix("data: "))
        assert "the engine has failed" in (told.get("response") or told)["error"]["message"]
        assert "response" not in told or told["response"]["output"][0]["status"] == "incomplete"
    assert server.process.exit_code() == 9


def test_a_request_that_kills_engines(copied, large):
    """The engine crashes in the prefill of one request each time: that request ends with an error, the others are served."""
    server = copied(large, *OPTIONS[:1], "--load-format", "dummy", "--num-gpu-blocks-override", "300", "--heartbeat-ms", "100",
                    "--max-model-len", "4096", "--no-enable-prefix-caching")
    body = {"prompt": [5] * 4000, "max_tokens": 4, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        killer = pool.submit(server.post, "/v1/completions", body)
        for k in range(3):
            deadline = time.monotonic() + HANG_S
            while server.metric("vllm:num_requests_running") < 1:
                assert time.monotonic() < deadline and not killer.done()
            mark = len(server.process.lines)
            os.kill(server.engine(), signal.SIGSEGV)
            server.process.wait_line(r"engine \(process \d+\) was killed by signal 11 .*restarting", start=mark)
            server.process.wait_line(r"link: connected", start=mark)
        status, answer = killer.result(HANG_S)
    assert status == 500 and "the last one was killed by signal 11" in answer["error"]["message"], answer
    assert server.post("/v1/completions", {**body, "prompt": [5, 6]})[0] == 200


def test_hangs_are_found(start):
    """A worker, an engine and a frontend that are stopped are replaced; the stream of the first two goes on."""
    server = start(MODELS / "llama", *OPTIONS, "--stall-timeout", "1")
    want = tokens(server, 3)[0]
    engine, = server.children("quire-engine")
    for name, pid in (("worker", server.children("quire-worker", engine)[0]), ("engine", engine)):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            os.kill(pid, signal.SIGSTOP)
            mark = len(server.process.lines)
            stream = pool.submit(tokens, server, 3)
            if name == "engine":
                told, deadline = set(), time.monotonic() + HANG_S
                while told != {"ready", "metrics"}:  # for some seconds, until the engine is killed
                    assert time.monotonic() < deadline and not any("does not respond: killing" in x for x in server.process.lines[mark:]), told
                    if "engine_stalled" in json.loads(server.get("/ready")[1])["codes"]:
                        told.add("ready")
                    if re.search(r"^quire:engine_stalled\{.*\} 1$", text := server.get("/metrics")[1], re.M):
                        assert re.search(r"^quire:engine_up\{.*\} 0$", text, re.M)
                        told.add("metrics")
            server.process.wait_line(r"exceeded the step limit of \d+\.\d s" if name == "worker" else r"engine .* does not respond: killing",
                                     start=mark)
            assert stream.result(HANG_S) == (want, None)
    frontend, = server.children("quire-frontend")
    mark = len(server.process.lines)
    os.kill(frontend, signal.SIGSTOP)
    server.process.wait_line(r"frontend .* does not respond: killing", start=mark)
    server.process.wait_line(r"frontend .* was killed by signal 9.*restarting", start=mark)
    assert tokens(server, 3) == (want, None)
    assert json.loads(server.get("/ready")[1]) == {"status": "ready", "codes": [], "reasons": []}


def test_a_frozen_service_goes_on(start):
    """All processes stand still for longer than one of them may be silent, as in a frozen container: none is replaced."""
    server = start(BUNDLED, *OPTIONS)
    want = tokens(server, 3, 600)[0]
    engine, = server.children("quire-engine")
    everyone = [server.process.process.pid, engine, *server.children("quire-frontend"), *server.children("quire-worker", engine)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream, = submit(pool, server, [3], 600)
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(13)
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)
        assert stream.result(HANG_S) == (want, None)
    assert tokens(server, 3) == (want[:200], None)
    assert everyone[1:] == [engine, *server.children("quire-frontend"), *server.children("quire-worker", engine)]
    assert "killing it" not in server.process.log() and "was killed" not in server.process.log()


def test_weights_that_change_on_disk(copied, tmp_path):
    """A stream does not go on with other weights, neither when the worker nor when the engine loads them again."""
    model = tmp_path / "model"
    shutil.copytree(BUNDLED, model)
    server = copied(model, *OPTIONS)
    body = {"prompt": [5, 7, 9], "max_tokens": 1, "ignore_eos": True}
    prints = {server.complete(**body)["system_fingerprint"]}
    for name in ("quire-engine", "quire-worker"):
        engine = server.engine()
        victim = engine if name == "quire-engine" else server.worker(engine)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            streams = submit(pool, server, range(4), 900)  # together they fit the blocks, and take seconds
            os.kill(engine, signal.SIGSTOP)
            weights = bytearray((model / "model.safetensors").read_bytes())
            weights[-1000] ^= 1
            (model / "new").write_bytes(weights)
            os.rename(model / "new", model / "model.safetensors")
            os.kill(victim, signal.SIGKILL)
            if victim != engine:
                os.kill(engine, signal.SIGCONT)
            answers = [stream.result(HANG_S) for stream in streams]
        assert all(error and ("other weights" if victim == engine else "changed on disk") in error["message"] for _, error in answers), answers
        answer = server.complete(**body)
        assert answer["system_fingerprint"] not in prints
        prints.add(answer["system_fingerprint"])
