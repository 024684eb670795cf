# SPDX-License-Identifier: Apache-2.0
"""Full disks, no descriptors, no memory, and clocks that jump: what is running goes on, what cannot be done is an error, and when
there is room again all is as before."""
import contextlib
import http.client
import json
import os
import pathlib
import resource
import socket
import subprocess
import threading
import time

import pytest

from servers import BIN, BUNDLED, HANG_S, Http
from streams import Client, answer, kinds

OPTIONS = ("--num-gpu-blocks-override", "600", "--max-num-seqs", "32", "--heartbeat-ms", "100")


def asks(n):
    return [ask for i in range(n) for ask in kinds(i) if ask[0] in ("seeded", "tools", "grammar", "beams")]


def answers(server, n=2):
    return [answer(server, path, body) for _, path, body in asks(n)]


def limit(pid, what, soft):
    """Set the soft limit of a running process; returns what undoes it."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))

    def undo():
        try:
            resource.prlimit(pid, what, before)
        except ProcessLookupError:
            pass  # its place has a process without the limit
    return undo


def n_descriptor(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_full_disk(start, tmp_path):
    """Records, traces and request lines stop with one line each; answers are those of before."""
    server = start(BUNDLED, *OPTIONS, "--record", tmp_path / "steps", "--record-requests", tmp_path / "requests", "--trace", tmp_path / "trace")
    want = answers(server)
    engine, = server.children("quire-engine")
    frontend, = server.children("quire-frontend")
    mark = len(server.process.lines)
    for pid in (engine, frontend):
        limit(pid, resource.RLIMIT_FSIZE, 1)
    assert answers(server) == want
    server.process.wait_line(r"recording stopped: .*steps: File too large", start=mark)
    server.process.wait_line(r"--record-requests .*requests: File too large: recording of requests stopped", start=mark)
    server.process.wait_line(r"trace stopped, cannot write: File too large", start=mark)
    assert answers(server) == want
    assert server.children("quire-engine") == [engine] and server.children("quire-frontend") == [frontend]


def test_no_descriptors(start):
    """A frontend without descriptors serves the connections that it has; an engine without them cannot start a worker until it
    has some, and its streams go on then."""
    server = start(BUNDLED, *OPTIONS)
    want = answers(server)
    frontend, = server.children("quire-frontend")
    undo = limit(frontend, resource.RLIMIT_NOFILE, n_descriptor(frontend) + 4)
    held = []
    for _ in range(12):
        held.append(socket.create_connection((server.host, int(server.port)), timeout=10))
    undo()
    for s in held:
        s.close()
    assert answers(server) == want
    engine, = server.children("quire-engine")
    stop, clients = threading.Event(), []
    for i in range(4):
        c = Client(server, i, stop)
        c.learn()
        clients.append(c)
        c.start()
    undo = limit(engine, resource.RLIMIT_NOFILE, n_descriptor(engine))
    worker, = server.children("quire-worker", of=engine)
    mark = len(server.process.lines)
    os.kill(worker, 9)
    server.process.wait_line(r"Too many open files", start=mark)
    undo()
    server.process.wait_line(r"the worker is running again", start=mark)
    n = [c.n_answer for c in clients]
    deadline = time.monotonic() + HANG_S
    while any(c.n_answer == before for c, before in zip(clients, n)):
        assert time.monotonic() < deadline and not any(c.wrong for c in clients), [c.wrong for c in clients]
        time.sleep(0.02)
    stop.set()
    for c in clients:
        c.join(HANG_S)
        assert not c.wrong
    assert server.children("quire-engine") == [engine]


@pytest.mark.parametrize("n", [20, 24, 32, 48, 63, 64, 72])
def test_few_descriptors_at_the_start(run, n):
    """A server that has not enough of them ends at once and says how many it needs; with as many it serves, and starts again."""
    process = run("/bin/sh", "-c", 'ulimit -n $0 && exec "$@"', n, BIN / "quire", "serve", BUNDLED, "--port", "0", *OPTIONS)
    if n < 64:
        assert process.exit_code() == 1
        assert f"the limit of open file descriptors is {n}, at least 64 are needed" in process.log()
        return
    server = Http(process.wait_line(r"listening on (http://\S+)")[1])
    process.wait_line(r"serve: ready")
    body = {"prompt": "a", "max_tokens": 2}
    assert server.post("/v1/completions", body)[0] == 200
    engine, = process.children("quire-engine")
    worker, = process.children("quire-worker", of=engine)
    os.kill(worker, 9)
    process.wait_line(r"the worker is running again")
    mark = len(process.lines)
    os.kill(engine, 9)
    process.wait_line(r"link: connected to engine", start=mark)
    assert server.post("/v1/completions", body)[0] == 200


def test_no_memory(start):
    """Address space runs out in engine and worker: a worker that cannot be started is tried again, streams are the same."""
    server = start(BUNDLED, *OPTIONS)
    want = answers(server)
    engine, = server.children("quire-engine")
    worker, = server.children("quire-worker", of=engine)
    size = int(pathlib.Path(f"/proc/{engine}/statm").read_text().split()[0]) * resource.getpagesize()
    undo = limit(engine, resource.RLIMIT_AS, size)  # its children have the limit too
    mark = len(server.process.lines)
    os.kill(worker, 9)
    server.process.wait_line(r"worker.*(restarting|trying again)", start=mark)
    time.sleep(0.5)
    undo()
    assert answers(server) == want


def memory_group():
    """(folder, file of the limit) of a new cgroup below the one of this process. None: the machine lets nobody make one."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        old = "memory" in names.split(",")
        if not old and number != "0":
            continue
        folder = pathlib.Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup", path.lstrip("/"), f"quire-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        limit_file = folder / ("memory.limit_in_bytes" if old else "memory.max")
        if limit_file.exists():
            return folder, limit_file
        folder.rmdir()
    return None


def test_memory_of_a_cgroup(start):
    """The worker may take no page more, by a cgroup: the kernel kills it in the middle of streams, another one goes on with them."""
    group = memory_group()
    if not group:
        pytest.skip("no cgroup with a limit of memory can be made (version 2 with the memory controller, or version 1)")
    folder, limit_file = group
    server = start(BUNDLED, *OPTIONS)
    try:
        want = answers(server)
        engine, = server.children("quire-engine")
        worker, = server.children("quire-worker", of=engine)
        try:
            limit_file.write_text("65536")
            (folder / "cgroup.procs").write_text(str(worker))
        except OSError as why:
            pytest.skip(f"{folder}: {why}")
        assert answers(server) == want
        server.complete([7 + i % 90 for i in range(1500)], max_tokens=8)  # blocks that nothing has touched
        assert answers(server) == want
        assert server.children("quire-engine") == [engine]
        print("the worker was killed" if server.children("quire-worker", of=engine) != [worker] else "the worker found its pages")
    finally:
        server.stop(seconds=60)
        with contextlib.suppress(OSError):
            folder.rmdir()


def test_no_memory_for_large_requests(start):
    """A frontend without address space refuses what it has no room for, or ends and is replaced; the engine does not notice, and
    what fits is answered."""
    server = start(BUNDLED, *OPTIONS)
    want = answers(server)
    engine, = server.children("quire-engine")
    frontend, = server.children("quire-frontend")
    size = int(pathlib.Path(f"/proc/{frontend}/statm").read_text().split()[0]) * resource.getpagesize()
    undo = limit(frontend, resource.RLIMIT_AS, size + (4 << 20))
    for n in (1 << 20, 6 << 20, 24 << 20):
        try:
            status, said = server.post("/v1/completions", {"prompt": "x" * n, "max_tokens": 1})
            assert status >= 400 and said["error"]["message"]
        except (OSError, http.client.HTTPException):
            pass  # it has ended
    undo()
    server.wait_metric("quire:open_requests", 0)
    assert answers(server) == want
    assert server.children("quire-engine") == [engine]


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
/* The wall clock is as many seconds ahead as the file has bytes, less a day. */
static time_t ahead(void)
{
    struct stat st;
    const char *path = getenv("QUIRE_CLOCK");
    return path && stat(path, &st) == 0 ? (time_t)st.st_size - 86400 : 0;
}
int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += ahead();
    return rc;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec s;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &s);
    t->tv_sec = s.tv_sec;
    t->tv_usec = s.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t)
{
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    if (t)
        *t = s.tv_sec;
    return s.tv_sec;
}
"""


def test_clock_jumps(start, tmp_path):
    """The wall clock of all programs jumps by up to a day, forward and back, under streams: no time-out, no restart, the same
    answers; the times of --record-requests do not go back."""
    (tmp_path / "clock.c").write_text(CLOCK)
    shim, clock = tmp_path / "clock.so", tmp_path / "clock"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "clock.c", "-ldl"], check=True)

    def jump(seconds):
        with open(clock, "ab") as f:
            f.truncate(86400 + seconds)
    jump(0)
    server = start(BUNDLED, *OPTIONS, "--record-requests", tmp_path / "requests", "--request-timeout", "60",
                   env={"LD_PRELOAD": str(shim), "QUIRE_CLOCK": str(clock)})
    want = answers(server)
    pids = (server.children("quire-engine"), server.children("quire-frontend"))
    created = answer_created(server)
    jump(86000)
    assert answer_created(server) - created > 80000  # the programs see it
    stop, clients = threading.Event(), []
    for i in range(4):
        c = Client(server, i, stop)
        c.learn()
        clients.append(c)
        c.start()
    for k, seconds in enumerate((-86000, 0, 40000, -3, 7, -86400, 86000, 0) * 2):
        jump(seconds)
        n = sum(c.n_event for c in clients)
        deadline = time.monotonic() + HANG_S
        while sum(c.n_event for c in clients) <= n + 20:
            assert time.monotonic() < deadline and not any(c.wrong for c in clients), [c.wrong for c in clients]
            time.sleep(0.01)
    stop.set()
    for c in clients:
        c.join(HANG_S)
        assert not c.wrong
    assert answers(server) == want
    assert (server.children("quire-engine"), server.children("quire-frontend")) == pids
    assert json.loads(server.get("/ready")[1])["status"] == "ready"
    server.stop()
    stamps = [json.loads(line)["timestamp"] + json.loads(line)["ms"] for line in open(tmp_path / "requests", encoding="utf-8")]
    assert stamps and all(b >= a - 1000 for a, b in zip(stamps, stamps[1:]))


def answer_created(server):
    return server.complete("x", max_tokens=1)["created"]
