# SPDX-License-Identifier: Apache-2.0
"""`quire distill` beside torch on the same work: speed, memory against the global batch, the pipeline's bubble. Usage:

    python3 tests/bench/distill.py [--parts speed,memory,bubble] [--rounds 5] [--steps 4] [--batches 1,64,1024] [--threads N]
                                   [--cpu-time] [--short N] [--work build/distill] [--out FILE] [--json FILE]

speed   teacher h512 x 8 layers, student h256 x 6, vocabulary 8192, sequences of 512, micro batches of 4, 4 of them a step: tokens a
        second in float32 and bfloat16. quire and torch alternate in each round; the table has medians and the ratio of medians.
        --cpu-time: of one thread, tokens a second of its CPU time, for a machine on which other programs run.
memory  2 ranks, vocabulary 32768, sequences of 1024, micro batches of 1, teacher h256 x 4, student h128 x 2: the largest resident
        memory of the ranks (VmHWM) after a step with each of --batches. --short: sequences behind the first have N tokens, for a slow
        machine: memory is that of the longest sequence, and whatever a micro batch would leave behind grows with their number still.
bubble  2 ranks of one thread each, teacher and student h256 x 8 layers, vocabulary 2048, sequences of 512: the part of all ranks'
        time that they wait for each other, with 8 and 32 micro batches, beside the ideal 1 / (m + 1).

torch (PyPI) is installed in --work on first use. On a busy machine the table says so: then ratios of alternated runs stand, memory
stands, and times and bubbles do not.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import resource
import signal
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build/release"))
CHILD = HERE.with_name("distill_child.py")
PACKAGES = ["torch", "safetensors", "numpy"]
QUIET_LOAD = 0.3


def llama(hidden, inner, layers, heads, vocab, positions):
    return {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": heads, "vocab_size": vocab, "max_position_embeddings": positions}


# name → teacher, student, tokens of a sequence, sequences of the data
WORK = {
    "speed": (llama(512, 1376, 8, 8, 8192, 512), llama(256, 688, 6, 4, 8192, 512), 512, 256),
    "memory": (llama(256, 688, 4, 4, 32768, 1024), llama(128, 344, 2, 4, 32768, 1024), 1024, 1024),
    "bubble": (llama(256, 688, 8, 4, 2048, 512), llama(256, 688, 8, 4, 2048, 512), 512, 64),
}
SPEED_BARS = {"float32": (1.3, 1.6), "bfloat16": (1.5, 2.0)}
TORCH_MEMORY_MB = "1,002 to 1,060"  # of torch in the same order, measured once with the same models


def say(text):
    print(f"distill.py: {text}", file=sys.stderr, flush=True)


def install(venv):
    mark = venv / "installed.txt"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        say(f"installing {' '.join(PACKAGES)} into {venv}")
        for command in ([sys.executable, "-m", "venv", venv], [venv / "bin/python", "-m", "pip", "install", "-q", *PACKAGES]):
            subprocess.run([str(word) for word in command], check=True)
        mark.write_text(" ".join(PACKAGES))
    return venv / "bin/python"


class Child:
    """torch in a process that stands still while quire is measured."""

    def __init__(self, python, threads):
        self.process = subprocess.Popen([python, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "THREADS": str(threads)})

    def ask(self, **command):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("distill.py: the process with torch ended")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


# ---- one run of quire ----

def folders(args, part):
    data = f"data-{args.short}.jsonl" if args.short and part == "memory" else "data.jsonl"
    return args.work / part / "teacher", args.work / part / "student", args.work / part / data


def prepare(args, part, child):
    teacher, student, n_token, n_sequence = WORK[part]
    paths = folders(args, part)
    for path, shape, seed in zip(paths, (teacher, student), (1, 2)):
        if not (path / "config.json").exists():
            child.ask(do="make", folder=str(path), shape=shape, seed=seed)
    if not paths[2].exists():
        numbers = random.Random(3)
        with open(paths[2], "w", encoding="utf-8") as out:
            for i in range(n_sequence):
                n = args.short if i and args.short and part == "memory" else n_token
                out.write(json.dumps({"input_ids": [numbers.randrange(teacher["vocab_size"]) for _ in range(n)]}) + "\n")
    return paths


def distill(args, part, *options):
    """Lines of --json of a run; the first two describe data and cut."""
    teacher, student, data = folders(args, part)
    out = args.work / part / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    command = [BUILD / "bin/quire-distill", "--teacher", teacher, "--student", student, "--data", data, "--output", out,
               "--data-cache", args.work / part / "cache", "--no-shuffle", "--no-packing", "--lr", "1e-4", "--json", "--log-level",
               "error", "--threads", args.threads, *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"distill.py: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- parts ----

def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_by_cpu(lines, tokens):
    """Fraction of the peak at so many tokens a CPU second of one thread: FLOP of a token ÷ peak are those of the steps that were timed."""
    steps = [line for line in lines if line.get("peak_fraction") and line.get("tok_s")]
    return statistics.median(line["peak_fraction"] / line["tok_s"] for line in steps) * tokens if steps else None


def speed_by_cpu(args, child):
    """dtype → (ours, theirs, peak): tokens a CPU second of one thread; the start of quire is subtracted by a run of one step."""
    results = {dtype: ([], [], []) for dtype in SPEED_BARS}
    teacher, student, data = prepare(args, "speed", child)
    tokens = 16 * WORK["speed"][2]
    for i in range(args.rounds):
        for dtype, (ours, theirs, peak) in results.items():
            used = []
            for steps in (1, 1 + args.steps):
                before = children_seconds()
                lines = distill(args, "speed", "--dtype", dtype, "--micro-batch-size", 4, "--global-batch-size", 16, "--steps", steps)
                used.append(children_seconds() - before)
            ours.append(tokens * args.steps / (used[1] - used[0]))
            child.ask(do="load", teacher=str(teacher), student=str(student), data=str(data), dtype=dtype, micro_batch=4, micro_batches=4)
            before = cpu_seconds(child.process.pid)
            child.ask(do="steps", n=args.steps)
            theirs.append(tokens * (args.steps + 1) / (cpu_seconds(child.process.pid) - before))
            peak.append(peak_by_cpu(lines, ours[-1]))
            say(f"round {i + 1}: {dtype}: {ours[-1]:.0f} tokens a CPU second, torch {theirs[-1]:.0f}, {ours[-1] / theirs[-1]:.2f} x")
    return results


def speed(args, child):
    """dtype → (ours, theirs, peak): tokens a second of each round's median step."""
    if args.cpu_time:
        return speed_by_cpu(args, child)
    results = {dtype: ([], [], []) for dtype in SPEED_BARS}
    teacher, student, data = prepare(args, "speed", child)
    for i in range(args.rounds):
        for dtype, (ours, theirs, peak) in results.items():
            lines = distill(args, "speed", "--dtype", dtype, "--micro-batch-size", 4, "--global-batch-size", 16, "--steps",
                            args.steps + 1)[2:]
            child.ask(do="load", teacher=str(teacher), student=str(student), data=str(data), dtype=dtype, micro_batch=4, micro_batches=4)
            answer = child.ask(do="steps", n=args.steps)
            ours.append(statistics.median(line["tok_s"] for line in lines[1:]))
            peak.append(statistics.median(line["peak_fraction"] for line in lines[1:]))
            theirs.append(statistics.median(answer["tok_s"]))
            off = abs(lines[0]["loss"] - answer["loss"]) / answer["loss"]
            if off > (1e-4 if dtype == "float32" else 2e-2):
                raise SystemExit(f"distill.py: {dtype}: the first loss is {lines[0]['loss']}, torch's is {answer['loss']}")
            say(f"round {i + 1}: {dtype}: {ours[-1]:.0f} tokens/s, torch {theirs[-1]:.0f}, {ours[-1] / theirs[-1]:.2f} x")
    return results


def memory(args, child):
    """global batch → peak MB of each rank."""
    results = {}
    prepare(args, "memory", child)
    for n in args.batches:
        step = distill(args, "memory", "--dtype", "float32", "--pipeline-parallel-size", 2, "--global-batch-size", n, "--steps", 1)[-1]
        results[n] = step["peak_rss_mb"]
        say(f"global batch {n}: {results[n]} MB, {step['tok_s']:.0f} tokens/s")
    return results


def bubble(args, child):
    """micro batches → (measured, predicted)."""
    results = {}
    prepare(args, "bubble", child)
    for n in (8, 32):
        lines = distill(args, "bubble", "--dtype", "float32", "--pipeline-parallel-size", 2, "--global-batch-size", n, "--steps",
                        args.rounds + 1)
        measured = statistics.median(line["bubble"] for line in lines[3:])
        results[n] = measured, lines[1]["predicted_bubble"], [rank["work"] for rank in lines[1]["ranks"]]
        say(f"{n} micro batches: bubble {measured:.4f}, ideal {1 / (n + 1):.4f}, predicted by the schedule {results[n][1]:.4f}")
    return results


# ---- the table ----

def machine():
    name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{name[1] if name else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def reached(value, bar, below=False):
    return f"{bar}: {'' if (value <= bar if below else value >= bar) else 'not '}reached"


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} … {max(values):.0f})"


def percent(fractions):
    known = [x for x in fractions if x is not None]
    return f"{100 * statistics.median(known):.0f} %" if known else "not known"


def table(args, results, busy):
    lines = [f"{machine()}, {args.threads} threads, {datetime.date.today()}, {args.rounds} rounds. Medians (least … most)."]
    if busy is not None:
        lines.append(f"THE MACHINE WAS BUSY: a load of {busy:.1f} beside this run. Ratios and memory stand, times and bubbles do not.")
    if "speed" in results:
        unit = "tokens a CPU second" if args.cpu_time else "tokens/s"
        lines += ["", f"| | quire: {unit} | of peak | torch: {unit} | ratio | bar | goal |", "|---|---|---|---|---|---|---|"]
        for dtype, (ours, theirs, peak) in results["speed"].items():
            ratio, (bar, goal) = statistics.median(ours) / statistics.median(theirs), SPEED_BARS[dtype]
            lines.append(f"| {dtype} | {spread(ours)} | {percent(peak)} | {spread(theirs)} | {ratio:.2f} "
                         f"| {reached(ratio, bar)} | {goal} |")
    if "memory" in results:
        least = results["memory"][min(results["memory"])]
        if args.short:
            lines += ["", f"Sequences behind the first have {args.short} tokens in place of {WORK['memory'][2]}."]
        lines += ["", "| global batch | peak MB of rank 0 / 1 | ratio to the smallest batch | bar | torch, same order |", "|---|---|---|---|---|"]
        for n, peaks in results["memory"].items():
            ratio = max(b / a for a, b in zip(least, peaks))
            lines.append(f"| {n} | {' / '.join(f'{mb:.0f}' for mb in peaks)} | {ratio:.3f} | {reached(ratio, 1.05, True)}; "
                         f"{reached(max(peaks), 400, True)} | {TORCH_MEMORY_MB} |")
    if "bubble" in results:
        lines += ["", "| micro batches | bubble | ideal | times the ideal | by the schedule | bar |", "|---|---|---|---|---|---|"]
        for n, (measured, predicted, _) in results["bubble"].items():
            lines.append(f"| {n} | {measured:.4f} | {1 / (n + 1):.4f} | {measured * (n + 1):.2f} | {predicted:.4f} "
                         f"| {reached(measured * (n + 1), 1.2, True)} |")
    return "\n".join(lines) + "\n"


PARTS = {"speed": speed, "memory": memory, "bubble": bubble}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 64, 1024])
    parser.add_argument("--short", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/distill")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    args.threads = 1 if args.cpu_time else args.threads
    if not set(args.parts) <= set(PARTS):
        parser.error(f"--parts takes {', '.join(PARTS)}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])  # of the children too
    load = os.getloadavg()[0]
    args.work.mkdir(parents=True, exist_ok=True)
    child = Child(install(args.work / "venv"), args.threads)
    results = {part: PARTS[part](args, child) for part in args.parts}
    text = table(args, results, load if load > QUIET_LOAD else None)
    print(text)
    if args.out:
        args.out.write_text(text)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "threads": args.threads, "results": results}, indent=1))
    child.close()


if __name__ == "__main__":
    main()
