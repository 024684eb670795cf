# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run.sh. A part yields its jobs: name, function of the run, seconds that are worth beginning it with.
A job returns what it found, or raises Failed or Skipped (store.py); what it costs when it never ends is its own time limit."""
import json
import pathlib
import re
import sys

import bench_jobs
import machine
import shapes
from store import Failed, Skipped, run

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "data/models"
CHECKS = ("embed", "silu_mul", "layer_norm", "activate", "add_rows", "soft_cap", "scatter", "pool_rows", "rms_norm", "norm_rows", "quant_rows",
          "rope", "kv_store", "qkv_epilogue", "attention", "linear", "linear_int8", "linear_w4a8", "linear_w4a16", "sample", "mla",
          "moe_route", "moe_combine", "linear_grouped", "linear_fp8", "linear_fp8_block")  # when cuda_check_card cannot say
# Checked first: what no card has run yet and all time is spent in.
FIRST = ("linear", "attention", "linear_fp8", "linear_int8", "linear_grouped", "linear_fp8_grouped", "linear_w4a16", "qkv_epilogue", "sample")
DIAGNOSES = 3  # of a run: compute-sanitizer takes its time
CLOSE = 0.1  # logprobs of two devices in bfloat16, of logits that random weights make


# ---- machine ----
def what_is_here(r):
    return [{"kind": "machine", "what": what, "is": is_} for what, is_ in machine.facts()]


def machine_jobs(r):
    yield "what is here", what_is_here, 0


# ---- ceilings ----
def card_copy(r):
    rows = r.must([r.program("cuda_bench"), "--json", "--op", "copy", *r.toy("--small")], 30).rows()
    opened = [{"kind": "opened", "card": row["card"], "note": row["note"]} for row in rows if "card" in row]
    return opened + [{"what": "copy", "by": "cuda_bench", "bytes_s": row["bytes"] / (row["best_ms"] / 1e3)} for row in rows
                     if row.get("best_ms", 0) > 0]


def beside(r, most, *args):
    """beside.py, in a Python that may have torch."""
    done = r.call([sys.executable, HERE / "beside.py", *r.toy("--small"), *args], most)
    if done.rc and re.search(r"ModuleNotFoundError|ImportError", done.err):
        raise Skipped(done.err.strip().splitlines()[-1])
    if done.rc != 0:
        raise Failed(done.why(), done.rows())
    return done.rows()


def ceilings(r):
    yield "copy", card_copy, 5
    yield "torch", lambda r: [{**row, "by": "torch"} for row in beside(r, 60, "ceilings")], 15


# ---- kernels ----
def diagnose(r, op):
    """Where a kernel that failed reads or writes what is not its own: nobody will have the card to ask later."""
    program = machine.tool("compute-sanitizer")
    if not program or r.n_diagnosed == DIAGNOSES or r.left(30) < 15 * r.o.patience:
        return []
    r.n_diagnosed += 1
    done = r.call([program, "--tool", "memcheck", "--print-limit", "20", r.program("cuda_check_card"), "--seed", "1", "--op", op], 30)
    said = [line for line in done.out.splitlines() if line.startswith("=========")]
    return [{"kind": "diagnosis", "op": op, "memcheck": " / ".join(x[9:].strip() for x in said[1:9])[:800]}]


def check(op):
    def job(r):
        done = r.call([r.program("cuda_check_card"), "--seed", "1", "--times", str(r.o.times), "--op", op], 40)
        if done.rc == 77:
            raise Failed(done.why())
        found = re.search(rf"^(ok|FAIL) +{op} +(\d+) comparisons +(\d+) ms", done.out, re.M)
        rows = [{"kind": "check", "op": op, "comparisons": int(found[2]), "ms": int(found[3]), "ok": found[1] == "ok"}] if found else []
        if done.rc != 0 or not found or found[1] != "ok" or int(found[2]) == 0:
            raise Failed(done.why(), rows + (diagnose(r, op) if done.rc is not None else []))
        return rows
    return job


def speed(kind, more=(), env=None):
    def job(r):
        done = r.call([r.program("cuda_bench"), "--json", *r.toy("--small"), *more], 60, env)
        rows = [{"kind": kind, **row} for row in done.rows() if "op" in row and row["op"] != "copy"]
        if done.rc != 0 or not rows:
            raise Failed(done.why(), rows)
        return rows
    return job


def kernels(r):
    listed = run(r.store, r.work, [r.program("cuda_check_card"), "--list"], 20, r.env)
    ops = listed.out.split() if listed.rc == 0 else CHECKS
    for op in sorted(ops, key=lambda op: FIRST.index(op) if op in FIRST else len(FIRST)):
        yield f"check {op}", check(op), 5
    yield "speed", speed("speed"), 25
    yield "speed without trial", speed("speed without wgmma", ["--op", "attention,linear,linear_grouped"], machine.WITHOUT), 20


# ---- goldens ----
def generate(r, model, prompts, more, device=None):
    """Answers to prompts [(ids, n_new)], all computed together: what each line says, in order."""
    source = r.work / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True}) + "\n"
                              for ids, n in prompts))
    done = r.must([r.program("quire-generate"), model, "--skip-tokenizer-init", "--input-file", source, "--log-level", "info",
                   *r.engine(device), *more], 60)
    return sorted(done.rows(), key=lambda row: row["prompt"])


def comparable(config, prompt):
    """How many greedy tokens have to be golden.json's, which were computed without a cache: with frequencies of the length so far.
    Beyond the length that rope was trained for ours stay those of the prompt's length (engine/model/README.md, rule 6)."""
    n, n_new = len(prompt["ids"]), len(prompt["greedy"])
    rope = config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) not in ("dynamic", "longrope", "su"):
        return n_new
    free = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if "greedy_kv_cached" in prompt:
        return 1
    return free + 1 - n if n <= free < n + n_new - 1 else n_new


def golden(path, how, more):
    def job(r):
        known = json.loads((path / "golden.json").read_text())["prompts"][:2 if r.o.small else None]
        longest = ["--max-model-len", "160"] if path.name == "llama-rope-dynamic" else []  # beyond what it was trained for
        got = generate(r, path, [(p["ids"], len(p["greedy"])) for p in known], ["--dtype", "float32", *longest, *r.toy(*shapes.SMALL_STEPS), *more])
        config = json.loads((path / "config.json").read_text())
        expected = [p["greedy"][:comparable(config, p)] for p in known]
        wrong = sum(a.get("token_ids", [])[:len(b)] != b for a, b in zip(got, expected)) + abs(len(got) - len(known))
        row = {"kind": "golden", "model": path.name, "how": how, "prompts": len(known), "wrong": wrong}
        if wrong:
            raise Failed(f"{wrong} of {len(known)} answers differ from golden.json", [row])
        return [row]
    return job


def drawn(n, vocab, longest):
    """n prompts of 3 tokens to `longest`, the same in every run."""
    draw, prompts = 7, []
    for i in range(n):
        ids = []
        for _ in range(3 + 53 * i % (longest - 2)):
            draw = (draw * 1664525 + 1013904223) % (1 << 32)
            ids.append(3 + (draw >> 8) % (vocab - 3))
        prompts.append(ids)
    return prompts


class Questions:
    """Prompts for a model and how it is opened. A golden model is small, and its heads have a size that the card's fast kernels do
    not serve; one by shape alone has random weights and runs what users run."""

    def __init__(self, name, n_layer=0):
        self.name, self.n_layer = name, n_layer

    def ask(self, r, n, n_new):
        if not self.n_layer:
            path, more, longest = MODELS / self.name, ["--max-model-len", "128"], 63
        else:
            path, more = shapes.folder(r.work, self.name, r.o.small, self.n_layer), ["--load-format", "dummy", "--max-model-len", "1024"]
            longest = 40 if r.o.small else 700
        vocab = json.loads((path / "config.json").read_text())["vocab_size"]
        self.path, self.prompts = path, [(ids, n_new) for ids in drawn(n, vocab, longest)]
        self.more = [*more, "--max-num-seqs", "4" if r.o.small else "16", *r.toy(*shapes.SMALL_STEPS), "--dtype", "bfloat16",
                     "--json", "--logprobs", "4"]
        return self


def same_bits(q):
    """Tokens and logprobs together, alone, and without graphs: nothing may differ."""
    def job(r):
        q.ask(r, 3 if r.o.small else 12, 4 if r.o.small else 24)

        def answers(*more):
            return [(a.get("token_ids"), a.get("logprobs")) for a in generate(r, q.path, q.prompts, [*q.more, "--deterministic", *more])]
        many = ["--max-num-seqs", "4" if r.o.small else "16"]
        want = answers(*many)
        wrong, rows = 0, []
        for how, more in (("alone", ["--max-num-seqs", "1"]), ("eager", [*many, "--enforce-eager"]),
                          ("in chunks", [*many, "--max-num-batched-tokens", "16" if r.o.small else "32"])):
            got = answers(*more)
            differ = sum(a != b for a, b in zip(got, want)) + abs(len(got) - len(want))
            rows.append({"kind": "same bits", "model": q.name, "dtype": "bfloat16", "how": how, "answers": len(want), "differ": differ})
            wrong += differ
        if wrong or len(want) != len(q.prompts):
            raise Failed(f"{wrong} answers differ in other company", rows)
        return rows
    return job


def compare(want, got, row):
    """Two answers, token by token until they part; they may where both tokens are as good as equally likely."""
    for a, b in zip(want["logprobs"], got["logprobs"]):
        row["tokens"] += 1
        if a["token_id"] != b["token_id"]:
            other = {t["token_id"]: t["logprob"] for t in a["top"]}.get(b["token_id"], -1e9)
            row["wrong"] += a["logprob"] - other > CLOSE
            return
        row["same"] += 1
        row["largest difference"] = max(row["largest difference"], round(abs(a["logprob"] - b["logprob"]), 5))


def as_the_cpu(q, *more):
    """The same greedy tokens as the CPU's kernels give, at the shapes that models have."""
    def job(r):
        q.ask(r, 2 if r.o.small else 8, 4 if r.o.small else 16)
        want = generate(r, q.path, q.prompts, [*q.more, *more], "cpu")
        got = generate(r, q.path, q.prompts, [*q.more, *more])
        row = {"kind": "as the CPU", "model": q.name, "how": " ".join(more), "answers": len(got), "tokens": 0, "same": 0, "wrong": 0,
               "largest difference": 0}
        for a, b in zip(want, got):
            compare(a, b, row)
        if len(got) != len(q.prompts) or row["wrong"] or row["largest difference"] > CLOSE or row["same"] == 0:
            raise Failed(f"{row['wrong']} answers part where the CPU is sure; logprobs differ by {row['largest difference']}", [row])
        return [row]
    return job


def goldens(r):
    many = ["--max-num-seqs", "4" if r.o.small else "16"]
    ways = (("graphs", many), ("eager", [*many, "--enforce-eager"]), ("one at a time", ["--max-num-seqs", "1"]))
    paths = []
    for path in sorted(MODELS.glob("*/golden.json")):
        prompts = json.loads(path.read_text()).get("prompts")
        if prompts and "greedy" in prompts[0] and "quantization_config" not in json.loads((path.parent / "config.json").read_text()):
            paths.append(path.parent)
    if not paths:
        raise Failed(f"no golden models in {MODELS}")
    for how, more in ways:
        for path in paths:
            yield f"{path.name} {how}", golden(path, how, more), 4
    for name, n_layer in (("llama", 0), ("qwen2", 0), ("gemma2", 0), ("gpt_neox", 0), ("Llama-3-8B", 2)):
        yield f"same bits {name}", same_bits(Questions(name, n_layer)), 15
    for name in ("Llama-3-8B", "Qwen2.5-0.5B", "Gemma-2-2B", "Pythia-1.4B", "Phi-3-mini"):
        yield f"as the CPU {name}", as_the_cpu(Questions(name, 2)), 20


# ---- sanitizer ----
def sanitize(tool, args):
    def job(r):
        program = machine.tool("compute-sanitizer")
        if not program:
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
                          "--prompt-ids", "1,2,3,4,5,6,7,8,9", "--max-tokens", "8", "--max-num-seqs", "4", *shapes.SMALL_STEPS,
                          *r.engine(), *more]
    for tool in ("memcheck", "racecheck"):
        yield f"{tool} steps", sanitize(tool, steps(["--enforce-eager"])), 15
        yield f"{tool} graphs", sanitize(tool, steps([])), 15
        for op in ("attention", "linear", "sample"):
            yield f"{tool} {op}", sanitize(tool, checks(op)), 15


# ---- torch ----
def torch_kernels(r):
    return [{"kind": "speed", **row} for row in beside(r, 60, "kernels")]


def torch_generate(name, how):
    def job(r):
        shape = ("32", "4", "1,2") if r.o.small else ("1024", "64", "1,8,64")
        rows = beside(r, 90, "generate", shapes.folder(r.work, name, r.o.small), *shape, how)
        return [{"kind": "generate", "model": name, **row} for row in rows]
    return job


def torch_jobs(r):
    yield "kernels", torch_kernels, 15
    for how in ("sdpa", "compiled"):
        for name in ("Llama-3-8B", "Qwen2.5-0.5B"):
            yield f"{name} {how}", torch_generate(name, how), 25


# ---- profile ----
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats", "Occupancy")


def profile(op, kernel_names):
    """The hardware's counters of one launch at each shape of cuda_bench, as text beside the page."""
    def job(r):
        program = machine.tool("ncu")
        if not program:
            raise Skipped("no ncu")
        sections = [x for s in SECTIONS for x in ("--section", s)]
        done = r.call([program, "--clock-control", "none", "--kernel-name", f"regex:{kernel_names}", *sections,
                       r.program("cuda_bench"), "--once", "--op", op, *r.toy("--small")], 60)
        if re.search(r"ERR_NVGPUCTRPERM|LibraryNotLoaded|No kernels were profiled", done.out + done.err):
            raise Skipped(done.why())
        n = len(re.findall(r"Section: GPU Speed Of Light", done.out))
        with open(r.o.out / "profile.txt", "a") as out:
            out.write(f"== {op} ==\n{done.out[-(2 << 20):]}\n")
        row = {"kind": "profile", "op": op, "launches": n, "in": "profile.txt"}
        if done.rc != 0 or not n:
            raise Failed(done.why(), [row])
        return [row]
    return job


def profiles(r):
    groups, products = "groups|sm90a", "few|many|any|sm90a"
    for op, names in (("attention", "attention|fold"), ("linear", products), ("linear_int8", products), ("linear_fp8", products),
                      ("linear_w4a8", "int4_"), ("linear_grouped", groups), ("linear_fp8_grouped", groups)):
        yield op, profile(op, names), 20


PARTS = {"machine": machine_jobs, "ceilings": ceilings, "kernels": kernels, "goldens": goldens, "sanitizer": sanitizer,
         "bench": bench_jobs.bench_jobs,
         "torch": torch_jobs, "profile": profiles}
NOT_OURS = re.compile(r"^(machine/|torch/|ceilings/torch$)")  # results that do not change with our programs
