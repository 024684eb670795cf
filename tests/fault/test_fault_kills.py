# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments under streams of every kind: a small part of kills.py."""
import os
import signal
import threading
import time

import kills
from servers import BUNDLED, HANG_S
from streams import Client, answer, kinds


def test_kills_of_worker_and_engine(start, tmp_path):
    server = start(BUNDLED, *kills.with_adapter(tmp_path))
    report = kills.run(server, n_kill=6, n_client=8, seed=20, victims=("worker", "engine", "worker+engine"))
    report.show()
    assert not report.wrong and report.n_broken == 0
    assert sum(report.n_kill.values()) == 6 and report.n_answer > 0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used"):
        server.wait_metric(name, 0)


def test_kills_of_frontends(start, tmp_path):
    """A stream of a killed frontend breaks and is asked again; what ends is right, and nothing is left in the engine."""
    server = start(BUNDLED, *kills.with_adapter(tmp_path), "--frontends", "2")
    report = kills.run(server, n_kill=4, n_client=6, seed=21, victims=("frontend", "worker"))
    report.show()
    assert not report.wrong and report.n_answer > 0
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used"):
        server.wait_metric(name, 0)


def test_a_killed_frontend_breaks_no_stream_of_another(start):
    """Of two frontends one is killed in the middle of streams of both: those of the other one are whole."""
    server = start(BUNDLED, *kills.OPTIONS, "--frontends", "2")
    asks = [next(ask for ask in kinds(i) if ask[0] == "seeded") for i in range(8)]
    want = [answer(server, path, body) for _, path, body in asks]
    stop, clients = threading.Event(), []
    for i in range(8):
        c = Client(server, i, stop, may_break=True)
        c.asks, c.want = [asks[i]], {"seeded": want[i]}
        clients.append(c)
        c.start()
    first, second = server.children("quire-frontend")
    mark, deadline, n_open = len(server.process.lines), time.monotonic() + HANG_S, 0
    while not n_open:  # it is killed while it stands still, so that its streams can be counted
        assert time.monotonic() < deadline
        os.kill(first, signal.SIGSTOP)
        if not (n_open := server.n_connection(first)):
            os.kill(first, signal.SIGCONT)
            time.sleep(0.01)
    os.kill(first, signal.SIGKILL)
    server.process.wait_line(r"frontend.* was killed by signal 9.*restarting", start=mark)
    assert second in server.children("quire-frontend")
    n = [c.n_answer for c in clients]
    while any(c.n_answer == before for c, before in zip(clients, n)) and not any(c.wrong for c in clients):
        assert all(c.is_alive() for c in clients)
        time.sleep(0.02)
    stop.set()
    for c in clients:
        c.join(HANG_S)
        assert not c.wrong
    assert sum(c.n_broken for c in clients) <= n_open, "a stream of the other one broke"
    assert len(server.process.children("quire-engine")) == 1
