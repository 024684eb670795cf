#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a service promises under faults and load: recovery, idle streams, overload, neighbours.

    QUIRE_BIN=build/release/bin python3 tests/bench/service.py [recovery] [idle] [overload] [neighbour] [--seconds 10]

recovery   a model of Llama-3.2-1B's shape (random weights, packed cache): from kill -9 of its worker, and of its engine, to the next
           token of a stream that was running. Goal: below a second.
idle       10,000 event streams whose requests wait in the engine: resident memory of the one frontend that holds them. Goal: 300 MB.
overload   closed-loop clients, from half of what the server takes to ten times of it, that obey Retry-After: the number at which 429
           begins, and tokens a second of whole answers. Goal: flat beyond it.
neighbour  one key asks small requests while another floods with long requests, new grammars and large bodies: its median and p99,
           quiet and then. Goal: p99 at most twice the quiet one.

Clients run on the cores of the server. Needs only Python's standard library."""
import argparse
import asyncio
import concurrent.futures
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
os.environ.setdefault("QUIRE_BIN", str(ROOT / "build/release/bin"))
from load import write_model  # noqa: E402
from servers import BUNDLED, Server  # noqa: E402

STREAMS = 10000
SEQS, QUEUE = 8, 8  # of the server that is overloaded


def rss_mb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0


async def post(server, path, body, key=None, on_line=lambda line: None):
    """(status, headers, body) over a connection of its own; on_line is called for each line of the body."""
    reader, writer = await asyncio.open_connection(server.host, int(server.port), limit=1 << 22)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n{auth}"
                     f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = int((await reader.readline()).split()[1])
        headers = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        text = b""
        while line := await reader.readline():
            on_line(line)
            text += line
        return status, headers, text
    finally:
        writer.close()


# ---- recovery ----

class Tokens(threading.Thread):
    """A stream, and when each of its tokens came."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.times = server, []
        self.start()

    def run(self):
        body = {"prompt": [5, 6, 7], "max_tokens": 4000, "ignore_eos": True}
        for event in self.server.events("/v1/completions", body, timeout=300):
            if not isinstance(event, str):
                self.times.append(time.monotonic())

    def after(self, at):
        """When the first token came after this time."""
        while not self.times or self.times[-1] <= at:
            assert self.is_alive()
            time.sleep(0.002)
        return next(t for t in self.times if t > at)


def recovery(a):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_model(folder)
        server = Server(folder, "--skip-tokenizer-init", "--packed-cache", folder / "packed", "--max-model-len",
                        "4096", "--num-gpu-blocks-override", "512", "--heartbeat-ms", "100", *a.options)
        server.process.wait_line("packed cache: wrote", seconds=600)
        tokens, seconds = Tokens(server), {"worker": [], "engine": []}
        for victim, back in (("worker", r"worker is running again"), ("engine", r"link: connected")) * a.repeats:
            tokens.after(tokens.after(time.monotonic()))
            engine, = server.children("quire-engine")
            worker, = server.children("quire-worker", of=engine)
            mark, killed = len(server.process.lines), time.monotonic()
            os.kill(worker if victim == "worker" else engine, signal.SIGKILL)
            server.process.wait_line(back, start=mark)  # what comes before it was on its way
            seconds[victim].append(tokens.after(time.monotonic()) - killed)
        server.process.process.kill()
        server.process.process.wait()
    for victim, values in seconds.items():
        print(f"recovery: {victim} killed, 1B shape: next token after {statistics.median(values):.2f} s (median of {len(values)}), at most "
              f"{max(values):.2f} s")


# ---- idle ----

async def hold(server, n):
    writers = []
    for i in range(n):
        reader, writer = await asyncio.open_connection(server.host, int(server.port))
        data = json.dumps({"prompt": [5, 1 + i % 90, 7], "max_tokens": 4, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
                     + data)
        await writer.drain()
        writers.append((reader, writer))
    return writers


def idle(a):
    many = str(STREAMS + 100)
    server = Server(BUNDLED, "--num-gpu-blocks-override", "128", "--enable-steering", "--max-open-requests", many, "--max-connections", many,
                    "--max-connections-per-address", many, "--max-num-queued-reqs", many, "--max-frontend-reqs", many, *a.options)
    frontend, = server.children("quire-frontend")
    engine, = server.children("quire-engine")
    assert server.post("/pause?mode=keep", {})[0] == 200
    empty = rss_mb(frontend), rss_mb(engine)

    async def run():
        held = await hold(server, STREAMS)
        deadline = time.monotonic() + 120
        while (n := await asyncio.to_thread(server.metric, "vllm:num_requests_waiting")) < STREAMS and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        await asyncio.sleep(12)  # two keep-alive comments for each
        full = rss_mb(frontend), rss_mb(engine)
        for _, writer in held:
            writer.close()
        return n, full
    n, full = asyncio.run(run())
    print(f"idle: {n:.0f} streams wait: frontend {full[0]:.0f} MB ({empty[0]:.0f} without), engine {full[1]:.0f} MB ({empty[1]:.0f})")
    server.wait_metric("vllm:num_requests_waiting", 0, seconds=60)
    server.stop(seconds=60)


# ---- overload ----

async def client(server, until, counts, seed):
    rng = random.Random(seed)
    while time.monotonic() < until:
        body = {"prompt": [rng.randint(3, 2000) for _ in range(64)], "max_tokens": 32, "ignore_eos": True}
        try:
            status, headers, text = await post(server, "/v1/completions", body)
        except OSError:
            counts["broken"] += 1
            continue
        if status == 200:
            counts["answers"] += 1
            counts["tokens"] += json.loads(text)["usage"]["completion_tokens"] if time.monotonic() < until else 0
        elif status == 429:
            counts["429"] += 1
            await asyncio.sleep(float(headers.get("retry-after", 1)) * rng.uniform(1, 1.5))
        else:
            counts["other"] += 1


def overload(a):
    server = Server(BUNDLED, "--num-gpu-blocks-override", "400", "--max-num-seqs", str(SEQS), "--max-num-queued-reqs", str(QUEUE),
                    "--no-enable-prefix-caching", *a.options)
    for n in (SEQS // 2, SEQS, SEQS + QUEUE, 2 * (SEQS + QUEUE), 5 * (SEQS + QUEUE), 10 * (SEQS + QUEUE)):
        counts = {"answers": 0, "tokens": 0, "429": 0, "broken": 0, "other": 0}

        async def run():
            until = time.monotonic() + a.seconds
            await asyncio.gather(*(client(server, until, counts, i) for i in range(n)))
        asyncio.run(run())
        print(f"overload: {n} clients: {counts['tokens'] / a.seconds:.0f} tokens/s, {counts['answers']} answers, {counts['429']} times 429, "
              f"{counts['broken'] + counts['other']} others")
    server.stop(seconds=60)


# ---- neighbour ----

async def small_requests(server, until, key):
    seconds, rng = [], random.Random(1)
    while time.monotonic() < until:
        began = time.monotonic()
        status, _, text = await post(server, "/v1/completions", {"prompt": [rng.randint(3, 2000) for _ in range(16)], "max_tokens": 8,
                                                                  "ignore_eos": True}, key)
        assert status == 200, text
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    return seconds


def measured(where, seconds, key):
    """small_requests in a process of its own: the clients of the flood share a loop, whose turns would be in the times."""
    return asyncio.run(small_requests(types.SimpleNamespace(host=where[0], port=where[1]), time.monotonic() + seconds, key))


LARGE = json.dumps({"prompt": "y" * (4 << 20), "max_tokens": 256}).encode()  # refused by its length; made once: clients share a core


async def flood(server, until, key, kind, seed):
    rng, n = random.Random(seed), 0
    while time.monotonic() < until:
        word = "".join(rng.choice("abcdefgh") for _ in range(8))
        body = {"prompt": "x", "max_tokens": 256, "ignore_eos": True}
        if kind == "grammar":
            body |= {"max_tokens": 4, "guided_regex": f"({word}[a-z]{{3,9}}|[0-9]{{2,12}}){{4,20}}"}
        elif kind == "body":
            body = LARGE
        try:
            status, headers, _ = await post(server, "/v1/completions", body, key)
        except OSError:
            continue
        n += 1
        if status == 429:
            await asyncio.sleep(0.05)
    return n


def neighbour(a):
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys"
        keys.write_text("alpha\nbeta\n")
        keys.chmod(0o600)
        server = Server(BUNDLED, "--num-gpu-blocks-override", "600", "--max-num-queued-reqs", "64",
                        "--api-key-file", keys, *a.options, key="beta")
        where = server.host, server.port
        pool = concurrent.futures.ProcessPoolExecutor(1)
        pool.submit(measured, where, 2, "beta").result()
        quiet = pool.submit(measured, where, a.seconds, "beta").result()

        async def run():
            until = time.monotonic() + a.seconds + 3
            kinds = ["long"] * 24 + ["grammar"] * 4 + ["body"] * 2
            floods = [asyncio.create_task(flood(server, until, "alpha", kind, i)) for i, kind in enumerate(kinds)]
            await asyncio.sleep(2)
            seconds = await asyncio.get_running_loop().run_in_executor(pool, measured, where, a.seconds, "beta")
            return seconds, sum(await asyncio.gather(*floods))
        loud, n = asyncio.run(run())
        pool.shutdown()
        server.stop(seconds=60)
    show = lambda values: f"median {statistics.median(values) * 1e3:.0f} ms, p99 {sorted(values)[int(len(values) * 0.99)] * 1e3:.0f} ms"  # noqa: E731
    print(f"neighbour: alone {show(quiet)} of {len(quiet)}; while another key sends {n} requests {show(loud)} of {len(loud)}: p99 "
          f"{sorted(loud)[int(len(loud) * 0.99)] / sorted(quiet)[int(len(quiet) * 0.99)]:.1f} times")


PARTS = {"recovery": recovery, "idle": idle, "overload": overload, "neighbour": neighbour}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("parts", nargs="*", help="of the list above; all by default")
    args.add_argument("--seconds", type=float, default=10, help="of each load")
    args.add_argument("--repeats", type=int, default=3, help="kills of each process")
    args.add_argument("--options", type=str.split, default=[], help="of quire serve, in one word")
    a = args.parse_args()
    for name in a.parts or PARTS:
        PARTS[name](a)


if __name__ == "__main__":
    main()
