#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of worker, engine, both and frontends at random moments, under clients that compare every answer.

    QUIRE_BIN=build/release/bin python3 tests/fault/kills.py [--kills 100] [--clients 32] [--seed 1] [--frontends 1] [-- SERVE OPTIONS]

First each client asks its requests once, undisturbed: greedy and seeded ones, tools, logprobs, n=2, grammars, beams, with an
adapter (streams.py).
Then all ask again and again while processes are killed. After a kill the next one waits until tokens have come again, so that no
limit on restarts without progress ends the service. Every answer has to be the undisturbed one. A stream whose own frontend is killed
breaks, and its client asks again: with --frontends 2 the streams of the other one have to be whole. Prints the longest pause of a
stream and the time from each kill to the next token of any client. Needs only Python's standard library."""
import argparse
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from servers import BUNDLED, Server  # noqa: E402
from streams import Client, write_adapter  # noqa: E402

OPTIONS = ("--num-gpu-blocks-override", "600", "--max-num-seqs", "32", "--heartbeat-ms", "200")
ADAPTER = "adapter"
BACK_S = 120  # within which tokens have to come again


def with_adapter(folder):
    """Options of a server that has the adapter."""
    return (*OPTIONS, "--enable-lora", "--lora-modules", f"{ADAPTER}={write_adapter(pathlib.Path(folder) / ADAPTER)}")


def pids_of(server, name):
    """Worker processes are children of the engine, which may be gone at this moment."""
    engines = server.children("quire-engine")
    if name == "engine":
        return engines
    if name == "frontend":
        return server.children("quire-frontend")
    return [pid for engine in engines for pid in server.children("quire-worker", of=engine)]


def kill(server, name, rng):
    """True if a process was killed."""
    pids = [pid for part in name.split("+") for pid in pids_of(server, part)]
    if name == "frontend" and pids:
        pids = [rng.choice(pids)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return bool(pids)


def wait_for_tokens(clients, before, deadline):
    while sum(c.n_event for c in clients) <= before:
        if time.monotonic() > deadline:
            raise AssertionError(f"no token for {BACK_S} s")
        if all(not c.is_alive() for c in clients):
            return
        time.sleep(0.01)


class Report:
    def __init__(self):
        self.n_kill = {}
        self.back_s = []     # from a kill to the next token of any client
        self.longest_s = 0.0  # pause of one stream
        self.n_answer = self.n_broken = 0
        self.wrong = []

    def show(self):
        kills = ", ".join(f"{n} of {name}" for name, n in sorted(self.n_kill.items()))
        print(f"{sum(self.n_kill.values())} kills ({kills}); {self.n_answer} answers compared, {self.n_broken} broken with their frontend")
        print(f"longest pause of a stream: {self.longest_s:.2f} s; from a kill to the next token: median "
              f"{statistics.median(self.back_s):.2f} s, longest {max(self.back_s):.2f} s")
        print("\n".join(self.wrong[:20]) or "every answer was that of an undisturbed run")


def run(server, n_kill, n_client, seed, victims, adapter=ADAPTER):
    """Learn, kill, compare."""
    rng, stop, report = random.Random(seed), threading.Event(), Report()
    may_break = "frontend" in victims
    clients = [Client(server, i, stop, may_break, adapter) for i in range(n_client)]
    for c in clients:
        c.learn()
    for c in clients:
        c.start()
    while sum(report.n_kill.values()) < n_kill and not any(c.wrong for c in clients):
        time.sleep(rng.uniform(0, 0.5))
        name = rng.choice(victims)
        if not kill(server, name, rng):
            continue
        at, before = time.monotonic(), sum(c.n_event for c in clients)
        report.n_kill[name] = report.n_kill.get(name, 0) + 1
        wait_for_tokens(clients, before, at + BACK_S)
        report.back_s.append(time.monotonic() - at)
    stop.set()
    for c in clients:
        c.join(BACK_S)
        report.n_answer += c.n_answer
        report.n_broken += c.n_broken
        report.longest_s = max(report.longest_s, c.longest_s)
        report.wrong += c.wrong + (["a client did not end"] if c.is_alive() else [])
    return report


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--kills", type=int, default=100)
    args.add_argument("--clients", type=int, default=32)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--frontends", type=int, default=1)
    args.add_argument("--victims", default="worker,engine,worker+engine,frontend", help="names, separated by commas")
    args.add_argument("options", nargs="*", help="of quire serve, after --")
    a = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(BUNDLED, *with_adapter(folder), "--frontends", str(a.frontends), *a.options)
        report = run(server, a.kills, a.clients, a.seed, a.victims.split(","))
        report.show()
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used"):
            server.wait_metric(name, 0)
        code = server.stop(seconds=60)
    sys.exit(1 if report.wrong or code else 0)


if __name__ == "__main__":
    main()
