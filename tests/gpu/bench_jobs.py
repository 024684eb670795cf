# SPDX-License-Identifier: Apache-2.0
"""The part "bench" of tests/gpu/run.sh: the engine by quire bench, and many requests by HTTP to quire-serve with a checkpoint."""
import json
import pathlib
import re
import socket
import time
import urllib.request

import machine
import shapes
from store import Child, Failed, NoTime, Skipped

HTTP = ("kind", "model", "num_prompts", "completed", "failed", "duration", "request_throughput", "output_throughput",
        "max_concurrent_requests", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms", "p99_e2el_ms")
HTTP_MODEL = "Llama-3-8B"
STARTED = (  # what an engine says of its start, at --log-level info
    (r"model loaded: .*, (?P<load_ms>\d+) ms", int), (r"graphs: \d+ graphs, (?P<graphs_mib>[\d.]+) MiB, captured in (?P<graphs_ms>\d+) ms", float),
    (r"attention of prompts by (?P<prompts_by>[\w.]+)", str), (r"kernels (?P<kernels>begin early|one after the other): ", str),
    (r"choices of algorithms from disk, (?P<tuned>\d+) made in (?P<tune_ms>\d+) ms; (?P<by_cublaslt>\d+) are", int))


def started(log):
    found = {}
    for pattern, number in STARTED:
        if hit := re.search(pattern, log):
            found |= {k: number(v) for k, v in hit.groupdict().items()}
    return found


def bench(r, kind, model, args, most, env=None):
    """quire bench: its rows, or Skipped when it says that it cannot do this model or this format."""
    to = r.work / "bench.json"
    to.unlink(missing_ok=True)
    done = r.call([r.program("quire-bench"), *args, "--json", to], most, env)
    if done.rc and r.cannot(done):
        raise Skipped(done.why())
    rows = []
    if to.exists():
        rows = [{"kind": kind, "model": model, **row, **started(done.err)} for row in json.loads(to.read_text())["results"]]
    if done.rc != 0 or not rows:
        raise Failed(done.why(), rows)
    return rows


def local(r, name, *more):
    return [shapes.folder(r.work, name, r.o.small), "--load-format", "dummy", "--skip-tokenizer-init", "--no-roofline", "--log-level", "info",
            *r.engine(), *r.toy(*shapes.SMALL_STEPS), *more]


def lengths(r, n_in, n_out):
    return ["--input-len", n_in // 32 if r.o.small else n_in, "--output-len", n_out // 16 if r.o.small else n_out]


def latency(name, kind, most, batches="1,8,64", more=(), env=None):
    def job(r):
        return bench(r, kind, name, ["latency", *local(r, name, *more), "--batch-size", "2" if r.o.small else batches,
                                     *lengths(r, 1024, 64), "--repeats", "1" if r.o.small else "3"], most, env)
    return job


def throughput(name, kind, n, shape, more, most):
    def job(r):
        seqs = ["--max-num-seqs", "4" if r.o.small else str(n)]
        return bench(r, kind, name, ["throughput", *local(r, name, *seqs, *more), "--num-prompts", 4 if r.o.small else n, *lengths(r, *shape)],
                     most)
    return job


# ---- by HTTP ----
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_ready(r, server, url, most):
    limit = time.monotonic() + r.left(most)
    while time.monotonic() < limit:
        if server.process.poll() is not None:
            raise Failed(f"quire-serve ended with {server.process.returncode} before it was ready: {server.errors()[-400:]}")
        try:
            with urllib.request.urlopen(url + "/ready", timeout=2) as answer:
                if answer.status == 200:
                    return time.monotonic() - server.start
        except OSError:
            pass
        time.sleep(0.02)
    if r.left(most) < 1:
        raise NoTime("the time was up before quire-serve was ready")
    raise Failed(f"quire-serve was not ready within {most} s: {server.errors()[-400:]}")


def http(r):
    config = shapes.config(HTTP_MODEL, r.o.small)
    place = shapes.room_for([pathlib.Path("/dev/shm"), r.work], shapes.checkpoint_bytes(config) * 5 // 4)
    with machine.workspace(place or r.work) as there:
        model, more = (shapes.checkpoint(there, config), []) if place else (shapes.folder(r.work, HTTP_MODEL, r.o.small), ["--load-format", "dummy"])
        port = free_port()
        served = r.work / "serve"
        served.mkdir(exist_ok=True)
        args = [r.program("quire-serve"), model, "--skip-tokenizer-init", "--port", port, "--max-num-seqs", 4 if r.o.small else 256,
                "--max-model-len", "2048", *r.engine(), *r.toy(*shapes.SMALL_STEPS), *more]
        with Child(r.store, served, args, r.env, gently=True) as server:
            ready = wait_ready(r, server, f"http://127.0.0.1:{port}", 90)
            rows = bench(r, "http", HTTP_MODEL, ["serve", "--port", port, "--num-prompts", 4 if r.o.small else 256, "--vocab-size", 500,
                                           *lengths(r, 1024, 128)], 60)
            said = started(server.errors())
    how = {"start_to_ready_s": round(ready, 2)} if place else {}
    return [{**{k: row[k] for k in HTTP if k in row}, **said, **how} for row in rows]


def bench_jobs(r):
    eight, fp8 = "Llama-3-8B", ["--quantization", "fp8"]
    yield f"{eight} latency", latency(eight, "latency", 90), 25
    yield f"{eight} throughput", throughput(eight, "throughput", 256, (1024, 128), [], 60), 25
    yield f"{eight} http", http, 40
    yield f"{eight} fp8", throughput(eight, "fp8", 512, (1000, 1000), fp8, 120), 50
    yield f"{eight} fp8, cache fp8", throughput(eight, "fp8", 512, (1000, 1000), [*fp8, "--kv-cache-dtype", "fp8"], 120), 50
    yield f"{eight} int4 latency", latency(eight, "latency int4", 60, "1,16", ["--quantization", "int4"]), 20
    yield f"{eight} latency, kernels apart", latency(eight, "latency apart", 60, "1,8", env=machine.APART), 20
    yield "Qwen2.5-0.5B latency", latency("Qwen2.5-0.5B", "latency", 60), 15
    yield "Qwen2.5-0.5B throughput", throughput("Qwen2.5-0.5B", "throughput", 512, (1024, 128), [], 60), 15
    yield "Qwen3-30B-A3B latency", latency("Qwen3-30B-A3B", "latency", 150), 45
