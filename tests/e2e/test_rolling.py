# SPDX-License-Identifier: Apache-2.0
"""Frontends on one port are replaced one after another under load: no connection is lost."""
import json
import os
import signal
import socket
import threading
import time

import pytest

from servers import HANG_S, MODELS

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100")
BODY = json.dumps({"prompt": [5, 7], "max_tokens": 4, "ignore_eos": True}).encode()
REQUEST = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
           + f"Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)


class Load:
    """Clients that open a connection for each request, without an end."""

    def __init__(self, port, n=8):
        self.port, self.stop, self.n_answer, self.faults = port, False, 0, []
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(n)]
        for thread in self.threads:
            thread.start()

    def _ask(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
            s.sendall(REQUEST)
            said = b""
            while piece := s.recv(1 << 16):
                said += piece
        return said

    def _run(self):
        while not self.stop:
            try:
                said = self._ask()
            except OSError as e:
                self.faults.append(repr(e))
                continue
            if said.startswith(b"HTTP/1.1 200 ") and b'"completion_tokens":4' in said:
                self.n_answer += 1
            else:
                self.faults.append(said)

    def more(self, n=20):
        """Until so many answers have come since now."""
        wanted, deadline = self.n_answer + n, time.monotonic() + HANG_S
        while self.n_answer < wanted:
            assert not self.faults and time.monotonic() < deadline, self.faults[:3]
            time.sleep(0.001)

    def end(self):
        self.stop = True
        for thread in self.threads:
            thread.join(60)
        assert not self.faults, self.faults[:3]
        assert self.n_answer > 0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_frontends_with_a_port_of_their_own(run, tmp_path):
    """--reuse-port: a new one is ready before an old one is told to end."""
    address, port = f"ipc://{tmp_path}/engine", free_port()
    engine = run("quire-engine", MODELS / "llama", "--listen", address, *OPTIONS[1:])
    engine.wait_line("ready")

    def frontend():
        started = run("quire-frontend", MODELS / "llama", "--engine", address, "--port", port, "--reuse-port", OPTIONS[0])
        started.wait_line(r"frontend: ready")
        return started
    old = [frontend(), frontend()]
    load = Load(port)
    for _ in range(4):
        new = frontend()
        load.more()
        oldest = old.pop(0)
        oldest.process.send_signal(signal.SIGTERM)
        assert oldest.exit_code() == 0
        old.append(new)
    load.end()


@pytest.mark.parametrize("n", (1, 2))
def test_frontends_of_a_supervisor(start, n):
    """It keeps the listening socket, and starts a frontend again that was told to end."""
    server = start(MODELS / "llama", *OPTIONS, "--api-server-count", str(n))
    load = Load(int(server.port))
    for _ in range(2):
        for pid in server.wait_children("quire-frontend", n):
            mark = len(server.process.lines)
            os.kill(pid, signal.SIGTERM)
            server.process.wait_line(r"frontend.* exited .*restarting", start=mark)
            server.process.wait_line("link: connected", start=mark)  # the new one runs, and would exit at a signal, too
            load.more()
    load.end()


def test_another_port_owner_is_an_error_without_the_option(run, tmp_path):
    port = free_port()
    first = run("quire-frontend", MODELS / "llama", "--engine", f"ipc://{tmp_path}/engine", "--port", port, "--reuse-port", OPTIONS[0])
    first.wait_line("listening")
    second = run("quire-frontend", MODELS / "llama", "--engine", f"ipc://{tmp_path}/engine", "--port", port, OPTIONS[0])
    assert second.exit_code() == 5
    assert "another process uses this port" in second.log()
