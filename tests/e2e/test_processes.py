# SPDX-License-Identifier: Apache-2.0
"""Processes that die, clients that go away, and what the others notice of it: nothing."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from servers import BIN, BUNDLED, MODELS

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--heartbeat-ms", "200")
BODY = {"temperature": 1, "ignore_eos": True}
LONG = 200  # tokens of an answer that is still coming when something happens to it
HANG_S = 400  # no event and no end for so long is a hang: a busy machine takes a minute and more for what these tests ask


class Stream(threading.Thread):
    """A streamed completion that runs beside the test."""

    def __init__(self, server, prompt, **body):
        super().__init__(daemon=True)
        self.server, self.body = server, {"prompt": prompt, **BODY, **body}
        self.ids, self.finish, self.error, self.comments = [], None, None, 0
        self.begun = threading.Event()
        self.start()

    def run(self):
        try:
            for event in self.server.events("/v1/completions", self.body, timeout=HANG_S):
                if isinstance(event, str):
                    self.comments += 1
                    continue
                choice = event["choices"][0]
                self.ids += choice["token_ids"]
                self.finish = choice["finish_reason"] or self.finish
                if len(self.ids) >= 3:
                    self.begun.set()
        except Exception as error:  # judged by the test
            self.error = error
        self.begun.set()

    def result(self):
        self.join(HANG_S)
        assert not self.is_alive(), f"the stream hangs after {len(self.ids)} tokens"
        return self.error or self.ids


def together(server, bodies):
    """The token ids of streams whose requests arrive at the same moment: all but the last byte of each is sent before."""
    connections = []
    for body in bodies:
        data = json.dumps({**BODY, **body, "stream": True}).encode()
        connection = http.client.HTTPConnection(server.host, int(server.port), timeout=HANG_S)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders()
        connection.send(data[:-1])
        connections.append((connection, data[-1:]))
    for connection, last in connections:
        connection.send(last)
    results = []
    for connection, _ in connections:
        text = connection.getresponse().read().decode()
        assert text.endswith("data: [DONE]\n\n"), text[-500:]
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        results.append([i for event in events for i in event["choices"][0]["token_ids"]])
        connection.close()
    return results


def alone(server, prompt, **body):
    status, answer = server.post("/v1/completions", {"prompt": prompt, **BODY, **body}, timeout=HANG_S)
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def slow(server, n=24):
    """Other requests that keep the engine busy, so that a stream takes a while."""
    return [Stream(server, [9, i + 1, 3], max_tokens=LONG, seed=i) for i in range(n)]


def test_engine_killed_streams_survive(start, large):
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--heartbeat-ms", "200",
                   "--num-gpu-blocks-override", "512")
    want = [alone(server, [4, 5, i], max_tokens=LONG, seed=i) for i in range(4)]
    streams = [Stream(server, [4, 5, i], max_tokens=LONG, seed=i) for i in range(4)]
    fillers = slow(server, 80)  # more than the pool holds: some still wait when the engine is killed
    whole = []
    thread = threading.Thread(target=lambda: whole.append(alone(server, [4, 5, 0], max_tokens=LONG, seed=0)))
    thread.start()
    for stream in streams:
        assert stream.begun.wait(HANG_S)
    assert any(s.finish is None for s in streams + fillers), "all had ended before the engine was killed"
    mark = len(server.process.lines)
    os.kill(server.children("quire-engine")[0], signal.SIGKILL)
    server.process.wait_line(r"engine \(process \d+\) was killed by signal 9.*restarting", seconds=HANG_S, start=mark)
    assert [s.result() for s in streams] == want
    thread.join(HANG_S)
    assert whole == [want[0]]
    assert all(isinstance(s.result(), list) and len(s.ids) == LONG for s in fillers)
    assert server.metric("quire:requests_resubmitted_total") > 0
    assert server.metric("quire:token_gaps_total") == 0
    assert server.get("/ready")[0] == 200


def test_engine_away_then_503(start):
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "64", "--engine-timeout", "1", "--sse-ping-ms", "100",
                   "--stall-timeout", "3600")  # no other engine takes its place
    engine = server.children("quire-engine")[0]
    os.kill(engine, signal.SIGSTOP)  # hangs: connected, but silent
    try:
        connection, answer = server.raw("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 4})
        assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1
        assert "not available" in answer.read().decode()
        assert server.get("/ready")[0] == 503 and "does not respond" in server.get("/ready")[1]
        assert server.get("/health")[0] == 200
        for stream in (False, True):  # the engine is away for longer than the limit: none waits again
            connection, answer = server.raw("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 4, "stream": stream})
            assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1
            assert json.loads(answer.read())["error"]["code"] == "service_unavailable"
    finally:
        os.kill(engine, signal.SIGCONT)
    deadline = time.monotonic() + HANG_S
    while server.get("/ready")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(alone(server, [1, 2], max_tokens=4, seed=1)) == 4


def test_engine_told_to_stop_finishes_and_is_replaced(start, large):
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--heartbeat-ms", "200",
                   "--num-gpu-blocks-override", "512")
    want = alone(server, [4, 5, 6], max_tokens=100, seed=1)
    streams = [Stream(server, [4, 5, 6], max_tokens=100, seed=1) for _ in range(4)]
    for stream in streams:
        assert stream.begun.wait(HANG_S)
    os.kill(server.children("quire-engine")[0], signal.SIGTERM)
    late = [Stream(server, [4, 5, 6], max_tokens=100, seed=1) for _ in range(2)]  # wait for the next engine
    assert [s.result() for s in streams + late] == [want] * 6


def test_engine_that_hangs_is_replaced(start):
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "512")
    want = alone(server, [4, 5, 6], max_tokens=LONG, seed=1)
    time.sleep(5)  # a young engine is given some grace
    fillers = slow(server)
    stream = Stream(server, [4, 5, 6], max_tokens=LONG, seed=1)
    assert stream.begun.wait(HANG_S)
    os.kill(server.children("quire-engine")[0], signal.SIGSTOP)
    server.process.wait_line(r"engine \(process \d+\) was stopped by a signal or a debugger and does not respond: killing it")
    assert stream.result() == want
    assert all(isinstance(s.result(), list) and len(s.ids) == LONG for s in fillers)


def test_two_frontends_one_killed(start, large):
    """The streams of the other one are whole, those of the killed one end early."""
    server = start(large, "--load-format", "dummy", *OPTIONS, "--num-gpu-blocks-override", "512", "--frontends", "2")
    want = [alone(server, [4, 5, i], max_tokens=LONG, seed=i) for i in range(6)]
    victim, other = server.children("quire-frontend")
    streams = {}
    for pid, stopped in ((other, victim), (victim, other)):  # a stopped frontend accepts no connection; the victim's streams are the last
        os.kill(stopped, signal.SIGSTOP)
        streams[pid] = [Stream(server, [4, 5, i], max_tokens=LONG, seed=i) for i in (range(3) if pid == other else range(3, 6))]
        for stream in streams[pid]:
            assert stream.begun.wait(HANG_S)
        if pid == other:
            os.kill(stopped, signal.SIGCONT)
    mark = len(server.process.lines)
    os.kill(victim, signal.SIGKILL)
    os.kill(other, signal.SIGCONT)
    server.process.wait_line(r"frontend . \(process \d+\) was killed by signal 9.*restarting", start=mark)
    assert [s.result() for s in streams[other]] == want[:3]
    for stream, tokens in zip(streams[victim], want[3:]):
        stream.result()
        assert not stream.finish and stream.ids == tokens[:len(stream.ids)]
    assert [alone(server, [4, 5, i], max_tokens=LONG, seed=i) for i in range(4)] == want[:4]
    server.wait_metric("quire:kv_blocks_used", 0)


def test_client_gone_frees_its_blocks(start, large):
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--heartbeat-ms", "200",
                   "--num-gpu-blocks-override", "2048")
    for kind in ("stream", "whole"):
        body = {"prompt": [[5, i, 7] for i in range(1, 17)], "max_tokens": 1500, **BODY, "stream": kind == "stream"}
        gone = server.metric("quire:clients_gone_total")
        made = server.metric("quire:engine_generation_tokens_total")
        sock = socket.create_connection((server.host, int(server.port)))
        data = json.dumps(body).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(data) + data)
        server.wait_metric_above("quire:kv_blocks_used", 0)
        sock.close()
        server.wait_metric("quire:clients_gone_total", gone + 1)
        server.wait_metric("quire:kv_blocks_used", 0)
        assert server.metric("vllm:num_requests_running") == 0
        assert server.metric("quire:engine_generation_tokens_total") - made < 16 * 1500, "it was finished, not aborted"
    assert server.metric("quire:open_requests") == 0  # the one that reads this is not counted


def test_64_streams_through_40_blocks(start):
    """More than the pool holds at once: preemption, and the same tokens as each alone."""
    small = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "40", "--max-num-seqs", "64")
    jobs = [([3 + i, 7, 11 + i % 5] * (1 + i % 7), 20 + (i * 37) % 90, i) for i in range(64)]
    want = [alone(small, p, max_tokens=n, seed=s) for p, n, s in jobs]
    assert small.raw("POST", "/pause?mode=keep")[1].read()  # all are there when the first one begins
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(together, small, [{"prompt": p, "max_tokens": n, "seed": s} for p, n, s in jobs])
        small.wait_metric("vllm:num_requests_waiting", 64)
        assert small.raw("POST", "/resume")[1].read()
        assert found.result() == want
    small.wait_metric_above("vllm:num_preemptions_total", 0)
    small.wait_metric("quire:kv_blocks_used", 0)
    assert small.metric("quire:kv_blocks_total") == 40


def wait_until_refused(server):
    """Until both the supervisor and its frontend have closed the port."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            socket.create_connection((server.host, int(server.port)), timeout=0.05).close()
        except ConnectionRefusedError:
            return
        except OSError:  # the kernel would try again after a second; or it was reset as the port was closed
            pass
        assert time.monotonic() < deadline, "the port is still open"
        time.sleep(0.01)


def test_sigterm_finishes_what_is_open(start, large):
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--num-gpu-blocks-override", "512", "--shutdown-timeout", "3600")
    streams = slow(server, 8)
    for stream in streams:
        assert stream.begun.wait(HANG_S)
    server.process.process.send_signal(signal.SIGTERM)
    open_ones, = re.findall(r"\d+", server.process.wait_line(r"terminated: accepting no new requests, \d+ requests are open")[0])
    assert int(open_ones) > 0
    wait_until_refused(server)
    assert all(len(s.result()) == LONG and s.finish == "length" for s in streams)
    assert server.process.exit_code() == 0
    assert not server.children("quire-engine") and not server.children("quire-frontend")


def test_sigterm_while_the_model_is_read(run, tmp_path):
    """The thread that reads it is in the middle of a large file then."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((BUNDLED / name).read_bytes())
    with open(tmp_path / "tokenizer.json", "ab") as f:
        f.write(b" " * (100 << 20))
    for i in range(8):
        frontend = run("quire-frontend", tmp_path, "--engine", "ipc:///tmp/quire-test-nobody-there", "--port", "0")
        frontend.wait_line("listening on")
        time.sleep(0.005 * i)
        frontend.process.send_signal(signal.SIGTERM)
        assert frontend.exit_code() == 0


def test_sigterm_as_soon_as_the_port_answers():
    """The line that says so is held up, so that the signal comes at the earliest moment at which anyone can know."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"\n" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)  # it is full: the first line of the log waits
    frontend = subprocess.Popen([BIN / "quire-frontend", BUNDLED, "--engine", "ipc:///tmp/quire-test-nobody-there", "--port", str(port)],
                                stderr=write_end)
    os.close(write_end)
    try:
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert frontend.poll() is None and time.monotonic() < deadline
                time.sleep(0.001)
        frontend.send_signal(signal.SIGTERM)
        with open(read_end, "rb") as log:
            said = log.read()
        assert frontend.wait(HANG_S) == 0
        # the pipe is full until here, so a line that waits for too long may be dropped: the log says how many
        assert b"listening on" in said or b"log lines were dropped" in said
        assert b"terminated" in said or b"log lines were dropped" in said
    finally:
        frontend.kill()
        frontend.wait()


def test_shutdown_timeout_ends_requests_with_an_error(start, large):
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--num-gpu-blocks-override", "2048",
                   "--shutdown-timeout", "0")
    tails, wholes, begun = {}, {}, threading.Semaphore(0)

    def ask(i, stream):
        body = json.dumps({"prompt": [1, 2, i + 3], "max_tokens": 1900, "stream": stream, **BODY})
        connection = http.client.HTTPConnection(server.host, int(server.port), timeout=HANG_S)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if stream:
            tails[i] = answer.read(1)
            begun.release()
            tails[i] += answer.read()
        else:
            wholes[i] = (answer.status, answer.read())

    threads = [threading.Thread(target=ask, args=(i, i % 2 == 0)) for i in range(16)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert begun.acquire(timeout=HANG_S)
    server.wait_metric("vllm:num_requests_running", 16)
    assert server.stop() == 0
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert len(tails) == 8 and len(wholes) == 8, "an answer was cut off"
    for tail in tails.values():
        assert b'"code":"service_unavailable"' in tail and b"the server is shutting down" in tail
        assert tail.endswith(b"data: [DONE]\n\n")
    for status, body in wholes.values():
        assert status == 503 and b"the server is shutting down" in body


def test_shutdown_refuses_connections(start, large):
    """While a stream goes on, behind which others wait."""
    server = start(large, "--load-format", "dummy", "--skip-tokenizer-init", "--num-gpu-blocks-override", "512", "--max-num-seqs", "1",
                   "--shutdown-timeout", "3600")
    first = server.events("/v1/completions", {"prompt": [1, 2], "max_tokens": 3900, **BODY}, timeout=HANG_S)
    next(first)
    streams = [Stream(server, [9, i + 1, 3], max_tokens=4, seed=i) for i in range(16)]
    server.wait_metric("vllm:num_requests_waiting", 16)
    server.process.process.send_signal(signal.SIGTERM)
    wait_until_refused(server)
    assert server.process.process.poll() is None, "requests are still open, so the server runs"
    first.close()
    assert all(len(s.result()) == 4 for s in streams)
    assert server.process.exit_code() == 0


def test_shutdown_resets_no_connection(start):
    """Clients that connect while the server begins to end are answered or refused, never reset."""
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "64")
    outcomes, answered = [], threading.Event()

    def connect():
        while True:
            try:
                with socket.create_connection((server.host, int(server.port)), timeout=HANG_S) as sock:
                    sock.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                    outcomes.append(sock.recv(15))
                    answered.set()
            except OSError as e:
                outcomes.append(type(e))
                return

    clients = [threading.Thread(target=connect, daemon=True) for _ in range(24)]
    for client in clients:
        client.start()
    assert answered.wait(HANG_S)
    deadline = time.monotonic() + HANG_S
    while len(outcomes) <= 4 * len(clients):  # all are busy
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.process.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(HANG_S)
    assert server.process.exit_code() == 0
    assert outcomes.count(b"HTTP/1.1 200 OK") > len(clients)
    assert set(outcomes) == {b"HTTP/1.1 200 OK", ConnectionRefusedError}


def test_children_die_with_the_supervisor(start):
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "64")
    children = server.children("quire-engine") + server.children("quire-frontend")
    assert len(children) == 2
    server.process.process.kill()
    server.process.process.wait()
    deadline = time.monotonic() + HANG_S
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in children if state(pid) not in ("Z", None)):
        assert time.monotonic() < deadline, "children live on"
        time.sleep(0.05)


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def test_bad_model_ends_at_once(run, tmp_path):
    for folder, word in [(tmp_path / "none", "none"), (tmp_path, "config.json")]:
        process = run("quire", "serve", folder, "--port", "0")
        assert process.exit_code() == 3
        assert word in process.log() and len(process.log().splitlines()) == 1


def test_counters_survive_a_frontend(start):
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "64")
    alone(server, [1, 2, 3], max_tokens=10, seed=1)
    assert server.metric("vllm:generation_tokens_total") == 10
    mark = len(server.process.lines)
    os.kill(server.children("quire-frontend")[0], signal.SIGKILL)
    server.process.wait_line(r"frontend.*restarting", start=mark)
    alone(server, [1, 2, 3], max_tokens=10, seed=1)  # waits in the listening socket meanwhile
    assert server.metric("vllm:generation_tokens_total") == 20
