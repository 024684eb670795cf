# SPDX-License-Identifier: Apache-2.0
"""A frontend's weight: milliseconds from exec to the first answered /health, and resident memory, on the bundled model.

Promised: under 100 ms and under 25 MB. Usage: [QUIRE_BIN=build/release/bin] python3 tests/bench/bench_frontend.py [MODEL]
Prints the figures and whether they keep the promise; exits 1 when they do not.
"""
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
MODEL = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "deploy/model/quire-tiny")
RUNS, STREAMS, ROUNDS = 21, 64, 4
LISTEN_MS_MAX, RSS_MB_MAX = 100, 25


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def begin(address, port):
    return subprocess.Popen([BIN / "quire-frontend", MODEL, "--engine", address, "--port", str(port), "--log-level", "error"])


def wait(port, path):
    while True:
        try:
            if get(port, path) == 200:
                return
        except OSError:
            pass
        time.sleep(0.0005)


def listening_ms(address):
    port = free_port()
    start = time.perf_counter()
    process = begin(address, port)
    wait(port, "/health")
    ms = (time.perf_counter() - start) * 1e3
    process.terminate()
    process.wait(30)
    return ms


def rss_mb(process, key="VmRSS"):
    for line in open(f"/proc/{process.pid}/status", encoding="utf-8"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no " + key)


def stream(port):
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64, "ignore_eos": True, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    assert b"[DONE]" in connection.getresponse().read()
    connection.close()


def main():
    folder = tempfile.mkdtemp(prefix="quire-bench-")
    address = f"ipc://{folder}/engine"
    times = sorted(listening_ms(address) for _ in range(RUNS))
    engine = subprocess.Popen([BIN / "quire-engine", MODEL, "--listen", address, "--num-gpu-blocks-override", "2048",
                               "--log-level", "error"])
    port = free_port()
    frontend = begin(address, port)
    try:
        wait(port, "/ready")
        ready = rss_mb(frontend)
        for _ in range(ROUNDS):
            threads = [threading.Thread(target=stream, args=(port,)) for _ in range(STREAMS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        busy = rss_mb(frontend, "VmHWM")
    finally:
        frontend.terminate()
        frontend.wait()
        engine.terminate()
        engine.wait()
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    kept = times[-1] < LISTEN_MS_MAX and busy < RSS_MB_MAX
    print(f"frontend, exec to /health: median {statistics.median(times):.1f} ms, worst of {RUNS} {times[-1]:.1f} ms "
          f"(promised: < {LISTEN_MS_MAX} ms)")
    print(f"frontend, resident: {ready:.1f} MB when ready, {busy:.1f} MB at most with {STREAMS} streams "
          f"(promised: < {RSS_MB_MAX} MB)")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
