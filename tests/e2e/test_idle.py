# SPDX-License-Identifier: Apache-2.0
"""A server that nobody asks anything takes no processor: all that it does are heartbeats."""
import os
import pathlib
import time

from servers import MODELS

WATCH_S = 2
BUSY_S_MAX = 0.01 * WATCH_S   # of all processes together; one thread that spins takes WATCH_S
WAKES_MAX = 100 * WATCH_S     # a loop that polls every millisecond makes ten times as many


def family(pid):
    """A process and all below it."""
    found = [pid]
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += family(int(child))
    return found


def used(pids):
    """(processor seconds, voluntary switches) of all threads so far."""
    seconds = switches = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            at = pathlib.Path(f"/proc/{pid}/task/{task}")
            seconds += int((at / "schedstat").read_text().split()[0]) * 1e-9
            switches += next(int(line.split()[1]) for line in (at / "status").read_text().splitlines()
                             if line.startswith("voluntary_ctxt_switches"))
    return seconds, switches


def test_an_idle_server_takes_no_processor(start):
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--threads", "2")
    server.complete([1, 2, 3], max_tokens=8, temperature=0)  # every thread has worked and gone to sleep
    time.sleep(0.5)
    pids = family(server.process.process.pid)
    assert len(pids) == 4, "serve, engine, worker, frontend"
    before = used(pids)
    time.sleep(WATCH_S)
    busy, wakes = (b - a for a, b in zip(before, used(pids)))
    assert busy <= BUSY_S_MAX, f"{busy * 1e3:.1f} ms of processor in {WATCH_S} s"
    assert wakes <= WAKES_MAX, f"woken {wakes} times in {WATCH_S} s"
