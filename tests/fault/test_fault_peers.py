# SPDX-License-Identifier: Apache-2.0
"""Peers that are there and do nothing: a network that swallows all bytes of open connections, a frontend that stops reading; and
ones that connect without end."""
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time

from servers import BUNDLED, Http
from streams import Client, answer, kinds

ENGINE = ("--num-gpu-blocks-override", "600", "--max-num-seqs", "32", "--heartbeat-ms", "100")


class Proxy(threading.Thread):
    """Passes bytes on. swallow(): those of the connections of now go nowhere from then on, in both directions, and no side is told."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to = to
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs, self.dead, self.lock = [], set(), threading.Lock()

    def run(self):
        while True:
            near = self.listener.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
            threading.Thread(target=self.pass_on, args=(near, far), daemon=True).start()

    def pass_on(self, near, far):
        select = selectors.DefaultSelector()
        for a, b in ((near, far), (far, near)):
            select.register(a, selectors.EVENT_READ, b)
        while True:
            for key, _ in select.select():
                if near in self.dead:
                    return  # the sockets stay open
                try:
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        raise ConnectionResetError
                    key.data.sendall(data)
                except OSError:
                    near.close()
                    far.close()
                    return

    def swallow(self):
        with self.lock:
            self.dead |= {near for near, _ in self.pairs}
            return len(self.pairs)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def begin(server, n):
    stop, clients = threading.Event(), []
    for i in range(n):
        c = Client(server, i, stop)
        c.learn()
        clients.append(c)
        c.start()
    return stop, clients


def wait_for_answers(clients, more=2, seconds=120):
    n = [c.n_answer for c in clients]
    deadline = time.monotonic() + seconds
    while any(c.n_answer < before + more for c, before in zip(clients, n)):
        assert time.monotonic() < deadline and not any(c.wrong for c in clients), [c.wrong for c in clients]
        time.sleep(0.02)


def end(stop, clients):
    stop.set()
    for c in clients:
        c.join(120)
        assert not c.is_alive() and not c.wrong, c.wrong


def test_half_open_connections(run):
    """The connection of frontend and engine is dead and nobody says so: heartbeats stop, the frontend connects again, and every
    stream goes on."""
    port = free_port()
    engine = run("quire-engine", BUNDLED, "--listen", f"tcp://127.0.0.1:{port}", "--insecure-tcp", *ENGINE)
    engine.wait_line("ready, fp_")
    proxy = Proxy(port)
    proxy.start()
    frontend = run("quire-frontend", BUNDLED, "--engine", f"tcp://127.0.0.1:{proxy.port}", "--insecure-tcp", "--port", "0")
    server = Http(frontend.wait_line(r"listening on (http://\S+)")[1])
    frontend.wait_line("link: connected")
    stop, clients = begin(server, 4)
    for _ in range(2):
        wait_for_answers(clients, 1)
        mark = len(frontend.lines)
        assert proxy.swallow() > 0
        frontend.wait_line("link: connected", start=mark)
        wait_for_answers(clients)
    end(stop, clients)
    assert engine.process.poll() is None and frontend.process.poll() is None


def test_a_frontend_that_stops_reading(run, tmp_path):
    """It is stopped in the middle of its streams: those of another frontend are not slower for it, and when it goes on its own
    streams are whole."""
    address = f"ipc://{tmp_path}/engine"
    engine = run("quire-engine", BUNDLED, "--listen", address, *ENGINE)
    engine.wait_line("ready, fp_")
    fronts = [run("quire-frontend", BUNDLED, "--engine", address, "--port", "0") for _ in range(2)]
    servers = [Http(f.wait_line(r"listening on (http://\S+)")[1]) for f in fronts]
    for f in fronts:
        f.wait_line("link: connected")
    stop, other = begin(servers[1], 3)
    stop_mine, mine = begin(servers[0], 4)
    wait_for_answers(mine, 1)
    os.kill(fronts[0].process.pid, signal.SIGSTOP)
    try:
        wait_for_answers(other, 5)
        assert engine.process.poll() is None
        size = int(pathlib.Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1])
        wait_for_answers(other, 5)
        grown = int(pathlib.Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1]) - size
        assert grown * os.sysconf("SC_PAGE_SIZE") < 64 << 20  # what it did not read is bounded
    finally:
        os.kill(fronts[0].process.pid, signal.SIGCONT)
    wait_for_answers(mine)
    end(stop_mine, mine)
    end(stop, other)
    _, path, body = next(kinds(0))
    assert answer(servers[0], path, body) == answer(servers[1], path, body)


FLOOD = """
import socket, struct, sys, time
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    held = []
    for _ in range(64):
        s = socket.socket()
        s.bind((sys.argv[4], 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.setblocking(False)
        try:
            s.connect((sys.argv[1], int(sys.argv[2])))
        except OSError:
            pass
        held.append(s)
    for s in held:
        s.close()  # a reset
"""


def test_a_flood_of_resets(start):
    """Connections that are made and reset as fast as six programs can: the frontend goes on with everything else, and the engine
    hears from it."""
    server = start(BUNDLED, *ENGINE)
    stop, clients = begin(server, 2)
    flooders = [subprocess.Popen([sys.executable, "-c", FLOOD, server.host, str(server.port), "8", "127.0.0.2"]) for _ in range(6)]
    assert [f.wait(120) for f in flooders] == [0] * 6
    end(stop, clients)
    assert all(c.n_answer for c in clients)
    assert "dropped with its" not in server.process.log() and server.metric("quire:engine_connections_total") == 1
