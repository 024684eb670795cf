# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run.sh, each a list of jobs.

A job is a few seconds of one thing, with a time limit of its own. What it finds is in OUT/results.json before the next one
begins, and OUT/page.md is made of that; OUT/log.txt has what every program said. A job with a result of this card and of these
programs is not run again, so a run that was cut off goes on. A job that fails, hangs or finds a bug of this script costs
itself only; what the time of the run (--minutes) does not reach is left to the next run and said."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import report  # noqa: E402
import shapes  # noqa: E402
from store import Child, Failed, NoTime, Skipped, Store, digest, run  # noqa: E402

MODELS = HERE.parent / "data/models"
SHARES = {"ceilings": 20, "kernels": 100, "goldens": 80, "sanitizer": 60, "bench": 190, "torch": 90}  # seconds of a run of all: 540
CHECKS = ("embed", "rms_norm", "rope", "silu_mul", "softmax_stats", "quant_rows", "kv_store", "attention", "linear", "linear_quant",
          "linear_int4", "linear_int4_half", "mla")  # when cuda_check_card cannot say
# What our programs say of what they do not do: on a card yet, or on the CPU when that is the device.
CANNOT = re.compile(r'architecture \S+ is not supported|--quantization is "|run on the CPU only|quantization fp8 is for devices')
TOY = " with toy shapes"
HTTP = ("kind", "model", "num_prompts", "completed", "failed", "duration", "request_throughput", "output_throughput",
        "max_concurrent_requests", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms", "p99_e2el_ms")
LEAST = 4  # seconds: a job is not begun with less


class Run:
    """One run of the script: where things are, what the options say, how long it may take."""

    def __init__(self, o, work, store):
        self.o, self.work, self.store = o, work, store
        self.deadline = time.monotonic() + o.minutes * 60
        self.device = os.environ.get("QUIRE_DEVICE", "cuda")

    def program(self, name):
        for place in (self.o.bin, self.o.bin.parent / "tests"):
            if (place / name).exists():
                return place / name
        raise Failed(f"no {name} in {self.o.bin} or {self.o.bin.parent / 'tests'}; cmake --build --preset carry makes it")

    def left(self, most):
        """Seconds that a job may take."""
        return min(most, self.deadline - time.monotonic())

    def call(self, args, most, env=None):
        limit = self.left(most)
        done = run(self.store, self.work, args, limit, env)
        if done.rc is None and limit < most:
            raise NoTime(f"the time was up after {limit:.0f} s")
        return done

    def must(self, args, most, env=None):
        done = self.call(args, most, env)
        if done.rc and CANNOT.search(done.err):
            raise Skipped(done.why())
        if done.rc != 0:
            raise Failed(done.why(), done.rows())
        return done

    def engine(self, *more):
        return ["--device", self.device, *more]


# ---- ceilings ----
def card_copy(r):
    rows = r.must([r.program("cuda_bench"), "--json", "--op", "copy"], 30).rows()
    return [{"what": "copy", "by": "cuda_bench", "bytes_s": row["bytes"] / (row["best_ms"] / 1e3)} for row in rows if row["best_ms"] > 0]


def beside(r, most, *args):
    """beside.py, in a Python that may have torch."""
    done = r.call([sys.executable, HERE / "beside.py", *args], most)
    if done.rc and re.search(r"ModuleNotFoundError|ImportError", done.err):
        raise Skipped(done.err.strip().splitlines()[-1])
    if done.rc != 0:
        raise Failed(done.why(), done.rows())
    return done.rows()


def ceilings(r):
    yield "copy", card_copy
    yield "torch", lambda r: [{**row, "by": "torch"} for row in beside(r, 60, "ceilings")]


# ---- kernels ----
def check(op):
    def job(r):
        done = r.call([r.program("cuda_check_card"), "--seed", "1", "--times", str(r.o.times), "--op", op], 40)
        if done.rc == 77:
            raise Failed(done.why())
        found = re.search(rf"^(ok|FAIL) +{op} +(\d+) comparisons +(\d+) ms", done.out, re.M)
        rows = [{"kind": "check", "op": op, "comparisons": int(found[2]), "ms": int(found[3]), "ok": found[1] == "ok"}] if found else []
        if done.rc != 0 or not found or found[1] != "ok" or int(found[2]) == 0:
            raise Failed(done.why(), rows)
        return rows
    return job


def speed(r):
    done = r.call([r.program("cuda_bench"), "--json", *(["--small"] if r.o.small else [])], 60)
    rows = [{"kind": "speed", **row} for row in done.rows() if row.get("op") != "copy"]
    if done.rc != 0 or not rows:
        raise Failed(done.why(), rows)
    return rows


def kernels(r):
    listed = run(r.store, r.work, [r.program("cuda_check_card"), "--list"], 20)
    for op in listed.out.split() if listed.rc == 0 else CHECKS:
        yield f"check {op}", check(op)
    yield "speed", speed


# ---- goldens ----
def generate(r, model, prompts, more, fields=("token_ids",)):
    """Answers to prompts [(ids, n_new)], all computed together: what `fields` of each line say, in order."""
    source = r.work / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True}) + "\n"
                              for ids, n in prompts))
    done = r.must([r.program("quire-generate"), model, "--skip-tokenizer-init", "--input-file", source, "--log-level", "info",
                   *r.engine(), *more], 60)
    answers = sorted(done.rows(), key=lambda row: row["prompt"])
    return [[answer.get(f) for f in fields] for answer in answers]


def golden(path, how, more):
    def job(r):
        known = json.loads((path / "golden.json").read_text())["prompts"]
        longest = ["--max-model-len", "160"] if path.name == "llama-rope-dynamic" else []  # beyond what it was trained for
        got = generate(r, path, [(p["ids"], len(p["greedy"])) for p in known], ["--dtype", "float32", *longest, *more])
        wrong = sum(a != [b["greedy"]] for a, b in zip(got, known)) + abs(len(got) - len(known))
        row = {"kind": "golden", "model": path.name, "how": how, "prompts": len(known), "wrong": wrong}
        if wrong:
            raise Failed(f"{wrong} of {len(known)} answers differ from golden.json", [row])
        return [row]
    return job


def same_bits(path, dtype):
    """Tokens and logprobs together, alone, and without graphs: nothing may differ."""
    def job(r):
        draw, vocab = 7, json.loads((path / "config.json").read_text())["vocab_size"]
        prompts = []
        for i in range(12):
            ids = []
            for _ in range(3 + 11 * i % 61):
                draw = (draw * 1664525 + 1013904223) % (1 << 32)
                ids.append(3 + (draw >> 8) % (vocab - 3))
            prompts.append((ids, 24))
        common = ["--dtype", dtype, "--deterministic", "--json", "--logprobs", "4", "--max-model-len", "128"]
        fields = ("token_ids", "logprobs")
        want = generate(r, path, prompts, [*common, "--max-num-seqs", "16"], fields)
        wrong, rows = 0, []
        for how, more in (("alone", ["--max-num-seqs", "1"]), ("eager", ["--max-num-seqs", "16", "--enforce-eager"]),
                          ("in chunks", ["--max-num-seqs", "16", "--max-num-batched-tokens", "32"])):
            got = generate(r, path, prompts, [*common, *more], fields)
            differ = sum(a != b for a, b in zip(got, want)) + abs(len(got) - len(want))
            rows.append({"kind": "same bits", "model": path.name, "dtype": dtype, "how": how, "answers": len(want), "differ": differ})
            wrong += differ
        if wrong or len(want) != len(prompts):
            raise Failed(f"{wrong} answers differ in other company", rows)
        return rows
    return job


def goldens(r):
    ways = (("graphs", ["--max-num-seqs", "16"]), ("eager", ["--max-num-seqs", "16", "--enforce-eager"]),
            ("one at a time", ["--max-num-seqs", "1"]))
    paths = []
    for path in sorted(MODELS.glob("*/golden.json")):
        prompts = json.loads(path.read_text()).get("prompts")
        if prompts and "greedy" in prompts[0] and "quantization_config" not in json.loads((path.parent / "config.json").read_text()):
            paths.append(path.parent)
    if not paths:
        raise Failed(f"no golden models in {MODELS}")
    for how, more in ways:
        for path in paths:
            yield f"{path.name} {how}", golden(path, how, more)
    for name in ("llama", "qwen2"):
        yield f"same bits {name}", same_bits(MODELS / name, "bfloat16")


# ---- sanitizer ----
def sanitize(tool, args):
    def job(r):
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(program).exists():
            raise Skipped("no compute-sanitizer")
        done = r.call([program, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all", *args(r)], 45)
        said = done.out + done.err
        if re.search(r"[Dd]evice not supported|not supported on this (device|system)", said):
            raise Skipped(f"compute-sanitizer: {re.search('.*not supported.*', said)[0].strip()}")
        found = re.findall(r"SUMMARY: (\d+) (?:errors?|hazards?)", said)  # one a process
        row = {"kind": "sanitizer", "tool": tool, "exit": done.rc, "processes": len(found), "findings": sum(map(int, found))}
        if done.rc != 0 or row["findings"] or not found:
            raise Failed(done.why(), [row])
        return [row]
    return job


def sanitizer(r):
    def checks(op):
        return lambda r: [r.program("cuda_check_card"), "--seed", "2", "--op", op]

    def steps(more):
        return lambda r: [r.program("quire-generate"), MODELS / "llama-bias-tied", "--skip-tokenizer-init", "--dtype", "bfloat16",
                          "--prompt-ids", "1,2,3,4,5,6,7,8,9", "--max-tokens", "8", "--max-num-seqs", "4",
                          "--num-gpu-blocks-override", "64", *r.engine(), *more]
    for tool in ("memcheck", "racecheck"):
        yield f"{tool} steps", sanitize(tool, steps(["--enforce-eager"]))
        yield f"{tool} graphs", sanitize(tool, steps([]))
        for op in ("attention", "linear", "sample"):
            yield f"{tool} {op}", sanitize(tool, checks(op))


# ---- bench ----
def folder(r, name):
    return shapes.folder(r.work, name, r.o.small)


def lengths(r, n_in, n_out):
    return ["--input-len", n_in // 32 if r.o.small else n_in, "--output-len", n_out // 16 if r.o.small else n_out]


def bench(r, kind, model, args, most):
    """quire bench: its rows, or Skipped when it says that it cannot do this model or this format."""
    to = r.work / "bench.json"
    to.unlink(missing_ok=True)
    done = r.call([r.program("quire-bench"), *args, "--json", to], most)
    if done.rc and CANNOT.search(done.err):
        raise Skipped(done.why())
    rows = []
    if to.exists():
        rows = [{"kind": kind, "model": model, **row} for row in json.loads(to.read_text())["results"]]
    if done.rc != 0 or not rows:
        raise Failed(done.why(), rows)
    return rows


def local(r, *more):
    return ["--load-format", "dummy", "--skip-tokenizer-init", "--no-roofline", *r.engine(), *more]


def latency(name, most):
    def job(r):
        return bench(r, "latency", name, ["latency", folder(r, name), *local(r), "--batch-size", "1,2" if r.o.small else "1,8,64",
                                          *lengths(r, 1024, 64), "--repeats", "3"], most)
    return job


def throughput(name, kind, n, shape, more=(), most=60):
    def job(r):
        return bench(r, kind, name, ["throughput", folder(r, name), *local(r, *more), "--num-prompts", 4 if r.o.small else n,
                                     *lengths(r, *shape)], most)
    return job


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
    if r.left(most) < LEAST:
        raise NoTime("the time was up before quire-serve was ready")
    raise Failed(f"quire-serve was not ready within {most} s: {server.errors()[-400:]}")


def http(r):
    """256 requests through a server that has loaded a real checkpoint: start to ready, and the rate."""
    name, config = "Llama-3-8B", shapes.config("Llama-3-8B", r.o.small)
    place = shapes.room_for([pathlib.Path("/dev/shm"), r.work], shapes.checkpoint_bytes(config) * 5 // 4)
    with tempfile.TemporaryDirectory(prefix="quire-gpu-", dir=place or r.work) as there:
        there = pathlib.Path(there)
        model, more = (shapes.checkpoint(there, config), []) if place else (folder(r, name), ["--load-format", "dummy"])
        port = free_port()
        served = r.work / "serve"
        served.mkdir(exist_ok=True)
        args = [r.program("quire-serve"), model, "--skip-tokenizer-init", "--port", port, "--max-num-seqs", "256",
                "--max-model-len", "2048", *r.engine(), *more]
        with Child(r.store, served, args, gently=True) as server:
            ready = wait_ready(r, server, f"http://127.0.0.1:{port}", 90)
            rows = bench(r, "http", name, ["serve", "--port", port, "--num-prompts", 4 if r.o.small else 256, "--vocab-size", 500,
                                           *lengths(r, 1024, 128)], 60)
    started = {"start_to_ready_s": round(ready, 2)} if place else {}
    return [{**{k: row[k] for k in HTTP if k in row}, **started} for row in rows]


def bench_jobs(r):
    yield "Llama-3-8B latency", latency("Llama-3-8B", 90)
    yield "Llama-3-8B throughput", throughput("Llama-3-8B", "throughput", 256, (1024, 128), ["--max-num-seqs", "256"])
    yield "Llama-3-8B http", http
    yield "Llama-3-8B fp8", throughput("Llama-3-8B", "fp8", 512, (1000, 1000), ["--quantization", "fp8", "--max-num-seqs", "512"], 120)
    yield "Qwen2.5-0.5B latency", latency("Qwen2.5-0.5B", 60)
    yield "Qwen2.5-0.5B throughput", throughput("Qwen2.5-0.5B", "throughput", 512, (1024, 128), ["--max-num-seqs", "256"])
    yield "Qwen3-30B-A3B latency", latency("Qwen3-30B-A3B", 150)


# ---- torch ----
def torch_kernels(r):
    return [{"kind": "speed", **row} for row in beside(r, 60, "kernels")]


def torch_generate(name, how):
    def job(r):
        rows = beside(r, 90, "generate", folder(r, name), "1024", "64", "1,8,64", how)
        return [{"kind": "generate", "model": name, **row} for row in rows]
    return job


def torch_jobs(r):
    yield "kernels", torch_kernels
    for how in ("sdpa", "compiled"):
        for name in ("Llama-3-8B", "Qwen2.5-0.5B"):
            yield f"{name} {how}", torch_generate(name, how)


PARTS = {"ceilings": ceilings, "kernels": kernels, "goldens": goldens, "sanitizer": sanitizer, "bench": bench_jobs, "torch": torch_jobs}


# ---- the run ----
def card(device):
    """Name, driver and memory of the card, or how this run goes without one."""
    if "QUIRE_CUDA_LIBRARY" in os.environ or device.startswith("cpu"):
        return os.environ.get("QUIRE_CUDA_LIBRARY") or device
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60)
        said, fine = (done.stdout + done.stderr).strip(), done.returncode == 0 and done.stdout.strip()
    except FileNotFoundError:
        said, fine = "there is no nvidia-smi on this machine, so no driver", False
    except (OSError, subprocess.TimeoutExpired) as e:
        said, fine = f"nvidia-smi: {e}", False
    if not fine:
        raise SystemExit(f"run.sh: no NVIDIA card to test on: {said} (QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device)")
    return done.stdout.strip().splitlines()[0]


def run_job(r, name, job):
    """Its status; what it found is stored before this returns. A run's time that is up stores nothing."""
    start = time.monotonic()
    rows, why = [], ""
    try:
        rows, status = job(r), "ok"
    except NoTime:
        return "not reached"
    except Skipped as e:
        status, why = "skipped", str(e)
    except Failed as e:
        status, why, rows = "FAIL", str(e), e.rows
    except Exception as e:  # of this script: the other jobs are run all the same
        status, why = "FAIL", f"tests/gpu/run.py: {type(e).__name__}: {e}"
        r.store.log(traceback.format_exc())
    r.store.put(name, status=status, seconds=round(time.monotonic() - start, 2), rows=rows, why=why)
    print(f"{status:4} {name}{': ' + why if why else ''}", flush=True)
    return status


def make_page(r):
    try:
        Store.write(r.o.out / "page.md", report.page(r.store, PARTS))
    except Exception:  # the figures are in results.json
        r.store.log(traceback.format_exc())
        print(f"the page could not be made; {r.store.log_path} says why", flush=True)


def run_part(r, part, until):
    """Counts of its jobs by status. Ends when its share of the time is over."""
    counts = {}
    try:
        jobs = list(PARTS[part](r))
    except Failed as e:
        jobs = [("start", lambda r, e=e: (_ for _ in ()).throw(e))]
    for name, job in jobs:
        name = f"{part}/{name}"
        if r.o.job and not re.search(r.o.job, name):
            continue
        if r.store.get(name).get("status") in ("ok", "skipped") and not r.o.again:
            status = "have"
        elif min(until, r.deadline) - time.monotonic() < LEAST * r.o.minutes / 9:
            status = "not reached"
        else:
            status = run_job(r, name, job)
            make_page(r)
        counts[status] = counts.get(status, 0) + 1
    return counts


def stop(*_):
    raise SystemExit("stopped; what was found is kept")


def options():
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description="See the head of tests/gpu/run.sh.")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of results.json, page.md and log.txt")
    parser.add_argument("--again", action="store_true", help="also what has a result of this card and of these programs")
    parser.add_argument("--job", default="", help="only jobs (PART/NAME) that this regular expression finds")
    parser.add_argument("--minutes", type=float, default=9, help="how long the run may take; default 9")
    parser.add_argument("--times", type=int, default=5, help="random cases of the kernels: this many times a short run's")
    parser.add_argument("--small", action="store_true", help="toy shapes, to try the script")
    parser.add_argument("parts", nargs="*", metavar="PART", help="all when none is named: " + " ".join(PARTS))
    o = parser.parse_args()
    for part in o.parts:
        if part not in PARTS:
            parser.error(f'no part "{part}"; there are {" ".join(PARTS)}')
    o.parts = o.parts or list(PARTS)
    return o


def main():
    o = options()
    signal.signal(signal.SIGTERM, stop)
    name = card(os.environ.get("QUIRE_DEVICE", "cuda"))
    o.out.mkdir(parents=True, exist_ok=True)
    known = [o.bin / p for p in ("quire-generate", "quire-bench", "quire-engine", "quire-frontend")]
    programs = digest([*known, o.bin.parent / "lib/libquire-cuda.so"])
    store = Store(o.out, name, programs + TOY if o.small else programs)  # neither goes for the other
    counts = {}
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as work:
        r = Run(o, pathlib.Path(work), store)
        shares = sum(SHARES[p] for p in o.parts)
        until = time.monotonic()
        for part in o.parts:
            until += o.minutes * 60 * SHARES[part] / shares
            for status, n in run_part(r, part, until).items():
                counts[status] = counts.get(status, 0) + n
        make_page(r)
    print(", ".join(f"{n} {status}" for status, n in counts.items()) + f"; {o.out}/page.md", flush=True)
    if counts.get("not reached"):
        print("not all was reached: the same command goes on", flush=True)
    sys.exit(1 if counts.get("FAIL") or not counts else 0)


if __name__ == "__main__":
    main()
