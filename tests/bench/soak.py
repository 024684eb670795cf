#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soak: random clients on one `quire serve` until the time is over; then nothing may be left.

    QUIRE_BIN=build/release/bin python3 tests/bench/soak.py [--seconds 600] [--clients 24] [--seed 1] [--kill-every 0] [-- SERVE OPTIONS]

Clients complete, chat, stream, call tools, ask for several answers and logprobs, send rubbish, read slowly, and hang up in the
middle. With --kill-every N the worker or the engine is killed each N seconds (kill -9), which no client may see. Every answer must
have the status that its request deserves. At the end the engine must run and hold nothing (no request, no KV block), no process may
have more descriptors than at the start, and the resident memory of every process that was not killed must have stopped growing: its
median over the last third of the time is compared with that over the second third. Exits 1 otherwise. Needs only Python's standard
library.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from servers import BUNDLED, Server  # noqa: E402

GROWTH_MAX = 0.03                       # of a process's memory, and
GROWTH_MB_MAX = 2.0                     # this much is never growth
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def words(rng, n):
    return " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 9))) for _ in range(n))


def sampling(rng):
    body = {"max_tokens": rng.randint(1, 80), "temperature": rng.choice((0, 0.7, 1.2)), "ignore_eos": rng.random() < 0.5}
    for key, value in (("top_p", 0.9), ("top_k", 20), ("min_p", 0.05), ("repetition_penalty", 1.1), ("seed", rng.randint(0, 99)),
                       ("stop", ["a", "\n\n"]), ("n", rng.randint(1, 3)), ("logit_bias", {"5": 3})):
        if rng.random() < 0.2:
            body[key] = value
    return body


def completion(rng):
    prompt = [rng.randint(3, 2000) for _ in range(rng.randint(1, 300))] if rng.random() < 0.5 else words(rng, rng.randint(1, 60))
    body = {"prompt": prompt, **sampling(rng)}
    if rng.random() < 0.2:
        body |= {"logprobs": rng.randint(0, 5), "echo": rng.random() < 0.5}
    return "/v1/completions", body, 200


def chat(rng):
    body = {"messages": [{"role": "user", "content": words(rng, rng.randint(1, 40))}], **sampling(rng)}
    if rng.random() < 0.3:
        body |= {"tools": [TOOL], "messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}
    return "/v1/chat/completions", body, 200


def rubbish(rng):
    return rng.choice((
        ("/v1/chat/completions", {"messages": "no list"}, 400), ("/v1/completions", {"prompt": "x", "temperature": 9}, 400),
        ("/v1/completions", {"prompt": [10 ** 9]}, 400), ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": -1}, 400), ("/v1/completions", {"model": "none", "prompt": "x"}, 404)))


class Client(threading.Thread):
    def __init__(self, server, seed, until, counts):
        super().__init__(daemon=True)
        self.server, self.rng, self.until, self.counts = server, random.Random(seed), until, counts
        self.wrong = []

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.one()
            except OSError as e:
                self.wrong.append(f"{type(e).__name__}: {e}")
            time.sleep(self.rng.choice((0, 0, 0.01, 0.2)))

    def one(self):
        rng = self.rng
        path, body, want = rng.choice((completion, chat, chat, rubbish))(rng)
        stream = rng.random() < 0.6
        connection, answer = self.server.raw("POST", path, {**body, "stream": stream}, timeout=300)
        kind = "refused" if want != 200 else "streamed" if stream else "whole"
        if answer.status not in (want, 429):
            self.wrong.append(f"{answer.status} for {path} {json.dumps(body)[:200]}: {answer.read()[:200]!r}")
        elif stream and want == 200 and rng.random() < 0.3:
            answer.read(rng.randint(1, 600))
            connection.sock and connection.sock.shutdown(socket.SHUT_RDWR)
            kind = "hung up"
        elif stream and rng.random() < 0.2:
            while answer.read(64):
                time.sleep(0.005)
            kind = "read slowly"
        else:
            text = answer.read()
            if answer.status == 200 and stream and b"data: [DONE]" not in text:
                self.wrong.append(f"a stream without its end: {text[-200:]!r}")
        connection.close()
        self.counts[kind] = self.counts.get(kind, 0) + 1    # a lost update would lose a count, no more


def rss_mb(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS:"))


def n_descriptor(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def processes(server):
    """Name -> process id of those that run now."""
    found = {name: server.children(name) for name in ("quire-engine", "quire-frontend")}
    found["quire-worker"] = [pid for engine in found["quire-engine"] for pid in server.children("quire-worker", of=engine)]
    return {"quire-serve": server.process.process.pid, **{name: pids[0] for name, pids in found.items() if pids}}


def sample(server):
    """Name -> MB; without a process that ends at this moment."""
    sizes = {}
    for name, pid in processes(server).items():
        try:
            sizes[name] = rss_mb(pid)
        except (OSError, StopIteration):
            pass
    return sizes


class Killer(threading.Thread):
    """Kills the worker or the engine each `every` seconds."""

    def __init__(self, server, every, until, seed):
        super().__init__(daemon=True)
        self.server, self.every, self.until, self.rng = server, every, until, random.Random(seed)
        self.n = 0
        self.start()

    def run(self):
        while time.monotonic() + self.every < self.until:
            time.sleep(self.every)
            pid = processes(self.server).get(self.rng.choice(("quire-worker", "quire-worker", "quire-engine")))
            if pid:
                os.kill(pid, signal.SIGKILL)
                self.n += 1


def check_descriptors(server, before, failures):
    """Of the processes that ran before and run now; connections need a moment to close."""
    deadline = time.monotonic() + 10
    while True:
        more = {name: (before[name], n) for name, pid in processes(server).items() if (n := n_descriptor(pid)) > before[name]}
        if not more or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    failures += [f"{name} had {n} descriptors at the start and has {now}" for name, (n, now) in more.items()]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--seconds", type=float, default=600)
    args.add_argument("--clients", type=int, default=24)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--kill-every", type=float, default=0, help="seconds between kills; 0: none")
    args.add_argument("--model", type=pathlib.Path, default=BUNDLED)
    args.add_argument("options", nargs="*", help="of quire serve, after --")
    a = args.parse_args()
    server = Server(a.model, "--num-gpu-blocks-override", "300", "--max-num-seqs", "32", *a.options)
    server.complete("x", max_tokens=1)
    pids, counts, samples = processes(server), {}, []
    descriptors = {name: n_descriptor(pid) for name, pid in pids.items()}
    start = time.monotonic()
    clients = [Client(server, a.seed * 1000 + i, start + a.seconds, counts) for i in range(a.clients)]
    for c in clients:
        c.start()
    killer = Killer(server, a.kill_every, start + a.seconds, a.seed) if a.kill_every else None
    while any(c.is_alive() for c in clients):
        time.sleep(min(5, a.seconds / 30))
        samples.append((time.monotonic() - start, sample(server)))
    failures = [w for c in clients for w in c.wrong]
    if not killer and processes(server) != pids:
        failures.append(f"processes were restarted: {pids}, now {processes(server)}")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used"):
        try:
            server.wait_metric(name, 0)
        except AssertionError as e:
            failures.append(str(e))
    check_descriptors(server, descriptors, failures)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())),
          f"in {a.seconds:.0f} s; {server.metric('vllm:generation_tokens_total'):.0f} tokens"
          + (f"; {killer.n} kills" if killer else ""))
    now = processes(server)
    for name in (name for name, pid in pids.items() if now.get(name) == pid):
        second, last = (statistics.median([s[name] for t, s in samples if name in s and low < t / a.seconds <= high])
                        for low, high in ((1 / 3, 2 / 3), (2 / 3, 1)))
        print(f"{name}: {second:.1f} MB in the second third, {last:.1f} MB in the last")
        if last - second > max(GROWTH_MB_MAX, GROWTH_MAX * second):
            failures.append(f"{name} grew from {second:.1f} to {last:.1f} MB")
    code = server.stop()
    if code != 0:
        failures.append(f"quire serve ended with {code}")
    print("\n".join(failures[:20]) or "nothing was left, nothing grew")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
