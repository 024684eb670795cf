# SPDX-License-Identifier: Apache-2.0
"""A frontend before several engines: prefixes, losses, rolling restarts, commands for all."""
import json
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest

from event_streams import events, merged, whole
from servers import BIN, BUNDLED, HANG_S, MODELS, Http
from test_rolling import Load

LLAMA = MODELS / "llama"
ENGINE = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100")
ADAPTER = pathlib.Path(__file__).parents[1] / "data" / "lora" / "llama-lora-r4"


class Fleet:
    """Engines that can be killed and started again at their addresses, and frontends before all of them."""

    def __init__(self, run, folder, n=2, options=(), model=LLAMA, frontend=("--skip-tokenizer-init",)):
        self.run, self.model, self.options, self.frontend_options = run, model, (*ENGINE[0 if "--skip-tokenizer-init" in frontend else 1:], *options), frontend
        self.addresses = [f"ipc://{folder}/engine{i}" for i in range(n)]
        self.engines = [self.engine(i) for i in range(n)]

    def engine(self, i, model=None):
        process = self.run("quire-engine", model or self.model, "--listen", self.addresses[i], *self.options)
        process.wait_line("ready")
        return process

    def frontend(self, *options, ready=True):
        given = [word for address in self.addresses for word in ("--engine", address)]
        process = self.run("quire-frontend", self.model, *given, "--port", "0", "--engine-timeout", "60", *self.frontend_options, *options)
        server = Http(process.wait_line(r"listening on (http://\S+)")[1])
        server.process = process
        if ready:
            process.wait_line(r"frontend: ready")
            server.wait_metric("quire:engine_up", len(self.addresses))
        return server

    def kill(self, i):
        self.engines[i].process.send_signal(signal.SIGKILL)
        self.engines[i].process.wait()


@pytest.fixture
def fleet(run, tmp_path):
    return Fleet(run, tmp_path)


def cpu_ticks(process):
    """Of the engine and its worker."""
    total = 0
    for pid in (process.process.pid, *process.children("quire-worker")):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total


def tokens(server, prompt, n=24, **more):
    return server.complete(prompt, **{"max_tokens": n, "ignore_eos": True, "temperature": 0, **more})["choices"][0]["token_ids"]


def test_a_conversation_stays(fleet):
    """Each turn finds the turns before it, in whichever engine they are, while others run."""
    server = fleet.frontend()
    rng = random.Random(7)
    talks = [[rng.randrange(3, 100) for _ in range(100)] for _ in range(6)]
    for turn in range(4):
        for talk in talks:
            answer = server.complete(talk, max_tokens=8, ignore_eos=True)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"] if answer["usage"].get("prompt_tokens_details") else 0
            assert (cached >= len(talk) - 50) == (turn > 0), (turn, cached, len(talk))
            talk += answer["choices"][0]["token_ids"] + [rng.randrange(3, 100) for _ in range(30)]
    assert all(p.process.poll() is None for p in fleet.engines)


def test_both_compute(fleet):
    server = fleet.frontend()
    before = [cpu_ticks(p) for p in fleet.engines]
    threads = [threading.Thread(target=tokens, args=(server, [5 + i, 6, 7], 200)) for i in range(12)]
    for t in threads:
        t.start()
    seen = 0
    deadline = time.monotonic() + HANG_S
    while any(t.is_alive() for t in threads):
        seen = max(seen, server.metric("vllm:num_requests_running"))
        assert time.monotonic() < deadline
    for t in threads:
        t.join()
    assert seen > 0
    spent = [cpu_ticks(p) - b for p, b in zip(fleet.engines, before)]
    assert all(s > 0 for s in spent), spent
    assert server.metric("quire:kv_blocks_total") == 2 * 256


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine(fleet, end):
    """Streams of an engine that is killed, or frozen, go on with the other one: the same tokens, each once, no error."""
    server = fleet.frontend()
    prompts = [[5 + i, 9, 11] for i in range(8)]
    more = {"max_tokens": 220, "ignore_eos": True, "temperature": 1, "seed": 5, "return_token_ids": True}
    want = [tokens(server, p, 220, temperature=1, seed=5) for p in prompts]
    got, some = [[] for _ in prompts], threading.Semaphore(0)

    def read(i):
        for event in server.events("/v1/completions", {"prompt": prompts[i], **more}, timeout=HANG_S):
            if isinstance(event, dict):
                got[i] += event["choices"][0]["token_ids"]
                some.release()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for _ in range(40):
        assert some.acquire(timeout=HANG_S)
    fleet.engines[0].process.send_signal(end)
    for t in threads:
        t.join(HANG_S)
    if end == signal.SIGSTOP:
        fleet.engines[0].process.send_signal(signal.SIGCONT)
    assert got == want
    assert "go on with other engines" in server.process.log()
    assert server.metric("quire:requests_resubmitted_total") > 0


def test_rolling_restart(fleet):
    """Each engine is ended and started again under load: every request is answered, by 200."""
    server = fleet.frontend()
    load = Load(int(server.port))
    for i in range(2):
        load.more()
        assert fleet.engines[i].stop() == 0
        load.more()
        fleet.engines[i] = fleet.engine(i)
        server.wait_metric("quire:engine_up", 2)
        load.more()
    load.end()


def test_ready_while_one_is_there(fleet):
    server = fleet.frontend()
    fleet.kill(1)
    server.wait_metric("quire:engine_up", 1)
    assert server.get("/ready")[0] == 200
    assert len(tokens(server, [5, 6])) == 24
    fleet.kill(0)
    server.wait_metric("quire:engine_up", 0)
    status, said = server.get("/ready")
    assert status == 503 and json.loads(said)["codes"] == ["engine_unreachable"], said
    # A request waits for whichever comes back.
    done = []
    waiting = threading.Thread(target=lambda: done.append(tokens(server, [5, 6])))
    waiting.start()
    fleet.engines[1] = fleet.engine(1)
    waiting.join(HANG_S)
    assert len(done[0]) == 24


def test_commands_are_for_all(fleet):
    server = fleet.frontend()
    for path, state, value in (("/sleep", "/is_sleeping", "is_sleeping"), ("/pause", "/is_paused", "is_paused")):
        assert server.raw("POST", path)[1].status == 200
        assert json.loads(server.get(state)[1])[value] is True
        assert server.raw("POST", "/wake_up" if path == "/sleep" else "/resume")[1].status == 200
        assert json.loads(server.get(state)[1])[value] is False
    status, said = server.post("/reload_weights", {})
    assert status == 200 and said["status"] == "reloaded", said
    assert server.raw("POST", "/reset_prefix_cache")[1].status == 200
    fleet.kill(1)
    server.wait_metric("quire:engine_up", 1)
    for path in ("/sleep", "/pause", "/reload_weights", "/reset_prefix_cache"):
        status, said = server.post(path, None)
        assert status == 503 and fleet.addresses[1] in said["error"]["message"], (path, said)
    assert len(tokens(server, [5, 6])) == 24  # nothing was done to the one that is there


def test_adapters(run, tmp_path):
    """An adapter is loaded by all engines; one that lost it gets no request for it."""
    fleet = Fleet(run, tmp_path, options=("--enable-lora",))
    server = fleet.frontend()
    connection, answer = server.raw("POST", "/v1/load_lora_adapter", {"lora_name": "r4", "lora_path": str(ADAPTER)})
    assert answer.status == 200, answer.read()
    want = tokens(server, [5, 6], model="r4")
    assert want != tokens(server, [5, 6])
    status, said = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/nowhere"})
    assert status == 404 and said["error"]["message"] == "lora_path: adapter x: there is no folder /nowhere", said
    fleet.kill(0)
    fleet.engines[0] = fleet.engine(0)
    server.wait_metric("quire:engine_up", 2)
    for i in range(6):
        assert tokens(server, [5, 6], model="r4") == want


def test_an_engine_of_another_model(fleet):
    """It is refused, with the reason; the other one serves."""
    fleet.engines[1].stop()
    fleet.engines[1] = fleet.engine(1, MODELS / "qwen3")
    server = fleet.frontend(ready=False)
    server.process.wait_line(r"link at \S+engine1: .*MISMATCH: the frontend's model folder differs from the engine's")
    server.process.wait_line(r"frontend: ready")
    for i in range(4):
        assert len(tokens(server, [5 + i, 6])) == 24
    assert server.metric("quire:engine_up") == 1


def test_other_settings_are_told(run, tmp_path):
    """Engines whose answers may differ in bits: a warning."""
    fleet = Fleet(run, tmp_path, n=1)
    fleet.addresses.append(f"ipc://{tmp_path}/engine1")
    fleet.options = (*fleet.options[:1], "--dtype", "bfloat16", *fleet.options[3:])
    fleet.engines.append(fleet.engine(1))
    server = fleet.frontend()
    server.process.wait_line(r"its fingerprint \S+ differs from \S+ of the engine at")


LONG = {"prompt": "quire is", "max_tokens": 600, "temperature": 1, "ignore_eos": True, "stream": True}


def resumable(run, folder):
    fleet = Fleet(run, folder, model=BUNDLED, frontend=("--stream-resume-timeout", "60"))
    return fleet, fleet.frontend(), fleet.frontend()


def test_streams_are_resumed(run, tmp_path):
    """The client has lost its connection: any frontend goes on, from whichever engine has the stream."""
    fleet, first, second = resumable(run, tmp_path)
    body = {**LONG, "max_tokens": 60, "seed": 3}
    want = whole(first, "/v1/completions", body)
    for n in (1, 5, 20):
        for frontend in (first, second):
            stream = events(first, "/v1/completions", body)
            seen = [next(stream) for _ in range(n)]
            stream.close()
            rest = whole(frontend, "/v1/completions", None, last_id=seen[-1][0])
            assert merged(seen + rest) == merged(want), n
    deadline = time.monotonic() + HANG_S  # 503 while frontends of an engine before may come back with streams
    while (found := second.post("/v1/completions", None, headers={"Last-Event-ID": "0" * 32 + ".1"}))[0] == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found[0] == 404, found


def test_streams_that_moved_are_resumed(run, tmp_path):
    """An engine was frozen, its streams went on with the other one, and it is back with what it had: the longer copy counts."""
    fleet, first, second = resumable(run, tmp_path)
    bodies = [{**LONG, "seed": i} for i in range(6)]
    want = [merged(whole(first, "/v1/completions", body)) for body in bodies]
    streams = [events(first, "/v1/completions", body) for body in bodies]
    seen = [[next(stream)] for stream in streams]
    fleet.engines[0].process.send_signal(signal.SIGSTOP)
    for i, stream in enumerate(streams):
        seen[i] += list(stream)
        assert merged(seen[i]) == want[i]
    assert "go on with other engines" in first.process.log()
    fleet.engines[0].process.send_signal(signal.SIGCONT)
    for server in (first, second):
        server.wait_metric("quire:engine_up", 2)
    for i in range(len(bodies)):
        for at in (1, len(seen[i]) // 2, len(seen[i]) - 2):
            rest = whole(second, "/v1/completions", None, last_id=seen[i][at - 1][0])
            assert merged(seen[i][:at] + rest) == want[i], (i, at)


def test_streams_of_a_lost_engine(run, tmp_path):
    """The engine is killed in the middle, and then the client loses its connection."""
    fleet, first, second = resumable(run, tmp_path)
    for turn in range(2):
        bodies = [{**LONG, "seed": 10 * turn + i} for i in range(4)]
        want = [merged(whole(first, "/v1/completions", body)) for body in bodies]
        streams = [events(first, "/v1/completions", body) for body in bodies]
        seen = [[next(stream)] for stream in streams]
        fleet.kill(turn)
        for i, stream in enumerate(streams):
            seen[i] += [next(stream) for _ in range(100)]
            stream.close()
            rest = whole(second if i % 2 else first, "/v1/completions", None, last_id=seen[i][-1][0])
            assert merged(seen[i] + rest) == want[i], (turn, i)
        fleet.engines[turn] = fleet.engine(turn)
        for server in (first, second):
            server.wait_metric("quire:engine_up", 2)


def test_options():
    def fails(*options):
        done = subprocess.run([BIN / "quire-frontend", LLAMA, *options], capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 2, done.stderr
        return done.stderr
    assert "--engine: ipc:///a is given twice" in fails("--engine", "ipc:///a", "--engine", "ipc:///a")
    assert "--engine" in fails("--engine", "ipc:///a", "--engine", "host:1")
    assert "at most 32" in fails(*[w for i in range(33) for w in ("--engine", f"ipc:///{i}")])


def test_many_frontends_and_losses(fleet):
    """Two frontends, engines that are killed and started in turn, many short requests: each is answered with its own tokens."""
    servers = [fleet.frontend(), fleet.frontend()]
    want = {i: tokens(servers[0], [5 + i, 6, 7], 40) for i in range(10)}
    faults, n_done, stop = [], [0], threading.Event()

    def ask(server, seed):
        rng = random.Random(seed)
        while not stop.is_set():
            i = rng.randrange(10)
            try:
                got = tokens(server, [5 + i, 6, 7], 40)
            except Exception as e:  # noqa: BLE001 - any failure is one
                faults.append(repr(e))
                return
            if got != want[i]:
                faults.append((i, got, want[i]))
                return
            n_done[0] += 1

    threads = [threading.Thread(target=ask, args=(servers[i % 2], i)) for i in range(8)]
    for t in threads:
        t.start()
    for turn in range(4):
        goal, deadline = n_done[0] + 20, time.monotonic() + HANG_S
        while n_done[0] < goal:
            assert not faults and time.monotonic() < deadline, faults
            time.sleep(0.01)
        fleet.kill(turn % 2)
        fleet.engines[turn % 2] = fleet.engine(turn % 2)
        for server in servers:
            server.wait_metric("quire:engine_up", 2)
    stop.set()
    for t in threads:
        t.join(HANG_S)
    assert not faults, faults[:2]
    assert n_done[0] >= 80
