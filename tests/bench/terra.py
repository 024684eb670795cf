# SPDX-License-Identifier: Apache-2.0
"""The plugin of deploy/plugins/terra beside transformers' generate(): a video world model of 98 M parameters with random weights,
the same weights, inputs, cores and run. Usage:

    python3 tests/bench/terra.py [--tokens 24] [--rounds 5] [--whole] [--rows bf16,batch,int8,int8kv] [--threads N] [--work build/terra]
                                 [--out FILE] [--json FILE] [--prepare-only] [--shape tiny] [--check]
    python3 tests/bench/terra.py --overhead       # instructions of a token beside a Llama of the same shape (valgrind)

A rollout is 3 frames of context and 4 new ones. generate() makes it in one call, terra-rollout in a request a frame. In each round
the engines alternate; a table shows the medians of the rounds, their spread, and the ratio beside its bar.

Whole frames take transformers minutes, so the time of a rollout is put together from parts: --tokens N before and after the border
between two frames, at three borders (3, 5 and 7 frames of context). The time of a token, the median at a border, grows with the
context in a line, so the mean of the three by Simpson's rule is the mean of all. To it comes the prefill of the context, and once a
frame what the border costs beyond a token: its actions, and for terra-rollout the request and the part of a block that is computed
again. --whole measures rollouts from the first token to the last instead. --check compares the tokens of both in float32 first.

On two quiet cores a round of --whole --rows bf16,int8 takes three minutes, one of --rows batch two.

torch and transformers from PyPI are installed in --work on first use. On a busy machine the table says so.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build/release"))
CHILD = HERE.with_name("terra_child.py")
PACKAGES = ["torch", "transformers", "safetensors", "numpy"]
CONTEXT, NEW, BATCH, SEED = 3, 4, 4, 0
BORDERS = (0, 2, 4)  # new frames before a border; Simpson's rule wants three at the same distance
QUIET_LOAD = 0.3

SHAPES = {
    "98m": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12,
            "intermediate_size": 2048, "vocab_size": 8192, "num_image_patches": 576, "num_action_tokens": 6,
            "num_spatio_embeddings": 582, "num_temporal_embeddings": 25, "action_dim": 3, "max_position_embeddings": 582 * 25},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
             "intermediate_size": 128, "vocab_size": 256, "num_image_patches": 60, "num_action_tokens": 4,
             "num_spatio_embeddings": 64, "num_temporal_embeddings": 12, "action_dim": 3, "max_position_embeddings": 64 * 12},
}
# name → rollouts, options of the engine, bar and goal of the ratio to generate() in bfloat16 with as many rollouts
ROWS = {
    "bf16": ("bfloat16, 1 rollout", 1, ("--dtype", "bfloat16"), 5, 7),
    "batch": ("bfloat16, 4 rollouts at once", BATCH, ("--dtype", "bfloat16"), 5, 8),
    "int8": ("int8 weights, 1 rollout", 1, ("--dtype", "bfloat16", "--quantization", "int8"), 7, 12),
    "int8kv": ("int8 weights and KV cache, 1 rollout", 1,
               ("--dtype", "bfloat16", "--quantization", "int8", "--kv-cache-dtype", "int8"), 7, 12),
}
QUANTIZED = {"int8", "int8kv"}  # beside generate() in bfloat16


def say(text):
    print(f"terra.py: {text}", file=sys.stderr, flush=True)


def run(*command, **more):
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if answer.returncode != 0:
        raise SystemExit(f"terra.py: {' '.join(map(str, command))} ended with {answer.returncode}\n{answer.stderr[-3000:]}")
    return answer.stdout


def install(venv):
    mark = venv / "installed.txt"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        say(f"installing {' '.join(PACKAGES)} into {venv}")
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/python", "-m", "pip", "install", "-q", *PACKAGES)
        mark.write_text(" ".join(PACKAGES))
    return venv / "bin/python"


class Child:
    """Transformers in a process that stands still while the other side is measured."""

    def __init__(self, python, threads):
        self.process = subprocess.Popen([python, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"})

    def ask(self, **command):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("terra.py: the process with transformers ended")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


# ---- one measurement ----

def rollout(folder, files, frames, tokens, options, out=None):
    """terra-rollout's figures."""
    words = [BUILD / "plugins/terra-rollout", folder, "--plugin", BUILD / "plugins/terra.so", "--context", files[0],
             "--actions", files[1], "--frames", frames, "--json"]
    words += ["--out", out] if out else []
    words += ["--tokens", tokens] if tokens else []
    return json.loads(run(*words, "--", "--threads", rollout.threads, *options))


def median_step(lists, start, end):
    """Seconds between a token and the next one of a list, of those between start and end."""
    steps = [b - a for times in lists for a, b in zip(times, times[1:]) if a >= start and b <= end]
    return statistics.median(steps)


def parts_of_rollout(answer):
    """(first token, time of a token, of a border) of two requests a rollout, the second of which goes on behind a border. Of
    several rollouts: when the last of them has its first token, then while all are running."""
    requests = answer["requests"]
    first = [r for r in requests if r["frame"] == 0]
    second = [r for r in requests if r["frame"] == 1]
    start, end = max(r["first_token_s"] for r in first), min(r["token_s"][-1] for r in second)
    within = median_step([r["token_s"] for r in requests], start, end)
    borders = [b["first_token_s"] - a["token_s"][-1] for a, b in zip(first, second)]
    return start, within, within + sum(max(0, x - within) for x in borders)  # each delays all of them


def parts_of_generate(times, tokens):
    within = median_step([times[:tokens], times[tokens:]], times[0], times[-1])
    return times[0], within, times[tokens] - times[tokens - 1]


def whole_time(parts, shape, tokens):
    """Seconds of the rollout: parts of BORDERS, in their order."""
    patches, per_frame = shape["num_image_patches"], shape["num_image_patches"] + shape["num_action_tokens"]
    first, border = parts[0][0], statistics.mean(p[2] for p in parts)
    token = (parts[0][1] + 4 * parts[1][1] + parts[2][1]) / 6
    prefill = first * CONTEXT * per_frame / (CONTEXT * per_frame - shape["num_action_tokens"] - tokens)
    return prefill + NEW * (patches - 1) * token + (NEW - 1) * border


# ---- inputs ----

SLICES = """
import sys, numpy
folder, tokens, context, batch = sys.argv[1], *map(int, sys.argv[2:5])
ids, actions = numpy.load(f"{folder}/context.npy"), numpy.load(f"{folder}/actions.npy")
def save(name, ids, actions):
    numpy.save(f"{folder}/{name}_ids.npy", ids)
    numpy.save(f"{folder}/{name}_actions.npy", actions)
for n in {1, batch}:
    save(f"whole_{n}", ids[:n, :context], actions[:n])
    for border in map(int, sys.argv[5:]):
        part = ids[:n, :context + border].copy()
        part[:, -1, -tokens:] = -1
        save(f"border{border}_{n}", part, actions[:n])
"""


def files_of(folder, name):
    return folder / f"{name}_ids.npy", folder / f"{name}_actions.npy"


def prepare(args, shape):
    """The folder of the model, with inputs, and the process with transformers."""
    python = install(args.work / "venv")
    folder = args.work / args.shape
    child = Child(python, args.threads)
    if not (folder / "config.json").exists():
        say(f"making {folder}")
        made = child.ask(do="make", folder=str(folder), shape=shape, seed=SEED, rollouts=BATCH, frames=CONTEXT + NEW + 1)
        say(f"{made['parameters'] / 1e6:.1f} M parameters")
    run(python, "-c", SLICES, folder, args.tokens, CONTEXT, BATCH, *BORDERS)
    return folder, child


def check(folder, child, tokens):
    """The same tokens in float32, across a border."""
    child.ask(do="load", folder=str(folder), dtype="float32")
    files = files_of(folder, "border0_1")
    theirs = child.ask(do="generate", context=str(files[0]), actions=str(files[1]), tokens=2 * tokens)["tokens"][0]
    out = folder / "check.npy"
    rollout(folder, files, 2, 0, ("--dtype", "float32"), out)
    script = "import sys, numpy; print(*numpy.load(sys.argv[1])[0].reshape(-1)[int(sys.argv[2]):][:int(sys.argv[3])])"
    patches = SHAPES[folder.name]["num_image_patches"]
    ours = list(map(int, run(child.process.args[0], "-c", script, out, patches - tokens, 2 * tokens).split()))
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    say(f"float32, across a border: {same} of {len(theirs)} tokens are the same")
    return same, len(theirs)


# ---- rounds ----

def measure_parts(args, folder, child, row):
    """(seconds of a rollout by quire, by generate())"""
    _, n, options, _, _ = ROWS[row]
    ours, theirs = [], []
    for border in BORDERS:
        files = files_of(folder, f"border{border}_{n}")
        ours.append(parts_of_rollout(rollout(folder, files, 2, args.tokens, options)))
        if row not in QUANTIZED:
            times = child.ask(do="generate", context=str(files[0]), actions=str(files[1]), tokens=2 * args.tokens)["times"]
            theirs.append(parts_of_generate(times, args.tokens))
    shape = SHAPES[args.shape]
    return whole_time(ours, shape, args.tokens), whole_time(theirs, shape, args.tokens) if theirs else None


def measure_whole(args, folder, child, row):
    _, n, options, _, _ = ROWS[row]
    files = files_of(folder, f"whole_{n}")
    ours = rollout(folder, files, NEW, 0, options, folder / "whole.npy")["seconds"]
    if row in QUANTIZED:
        return ours, None
    tokens = NEW * SHAPES[args.shape]["num_image_patches"]
    return ours, child.ask(do="generate", context=str(files[0]), actions=str(files[1]), tokens=tokens)["times"][-1]


def measure(args, folder, child):
    """row → (ours, theirs): seconds of each round."""
    results = {row: ([], []) for row in args.rows}
    one = measure_whole if args.whole else measure_parts
    for i in range(args.rounds):
        for row in args.rows:
            ours, theirs = one(args, folder, child, row)
            results[row][0].append(ours)
            theirs = theirs if theirs is not None else results["bf16"][1][i]
            results[row][1].append(theirs)
            say(f"round {i + 1}: {ROWS[row][0]}: {ours:.1f} s, generate() {theirs:.1f} s, {theirs / ours:.2f} x")
    return results


# ---- the table ----

def machine():
    name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{name[1] if name else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def table(args, results, busy, torch):
    how = "whole rollouts" if args.whole else f"{args.tokens} tokens before and after each of {len(BORDERS)} borders"
    lines = [f"{machine()}, {args.threads} threads, {datetime.date.today()}, {args.rounds} rounds, {how}; "
             f"torch {torch}, {args.shape}, {CONTEXT} frames of context, {NEW} new ones. Medians (least … most)."]
    if busy is not None:
        lines.append(f"THE MACHINE WAS BUSY: a load of {busy:.1f} beside this run. Ratios stand, seconds do not.")
    lines += ["", "| | quire: s a rollout | generate(): s a rollout | rollout-frames/s | ratio | bar | goal |",
              "|---|---|---|---|---|---|---|"]
    for row, (ours, theirs) in results.items():
        text, n, _, bar, goal = ROWS[row]
        ratios = [t / o for o, t in zip(ours, theirs)]
        reached = "reached" if statistics.median(ratios) >= bar else "not reached"
        lines.append(f"| {text} | {spread(ours)} | {spread(theirs)} | {n * NEW / statistics.median(ours):.3f} | {spread(ratios)} "
                     f"| {bar}: {reached} | {goal} |")
    return "\n".join(lines) + "\n"


# ---- the overhead ----

def overhead(args, folder):
    """Instructions of a token by the plugin and by a Llama of the same shape and weights: two runs each, whose difference is
    tokens alone. The plugin's model adds two rows to each row of the embedding; the rest is the price of being a plugin."""
    plain = folder.with_name(folder.name + "_llama")
    plain.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.update(architectures=["LlamaForCausalLM"], model_type="llama")
    (plain / "config.json").write_text(json.dumps(config))
    if not (plain / "model.safetensors").exists():  # of which a Llama does not use four
        (plain / "model.safetensors").symlink_to(folder / "model.safetensors")
    figures = {}
    for name, model, options in (("plugin", folder, ("--plugin", BUILD / "plugins/terra.so")), ("Llama", plain, ())):
        counts = [instructions(args, model, options, n) for n in (2, 2 + args.tokens)]
        figures[name] = (counts[1] - counts[0]) / args.tokens
    ratio = figures["plugin"] / figures["Llama"] - 1
    hidden = SHAPES[args.shape]["hidden_size"]
    print(f"instructions of a decoded token (valgrind, AVX2, one thread): plugin {figures['plugin']:.0f}, Llama of the same shape "
          f"{figures['Llama']:.0f}: {100 * ratio:+.3f} %, {figures['plugin'] - figures['Llama']:.0f} instructions "
          f"for {2 * hidden} additions and the rest")
    return ratio


def instructions(args, model, options, tokens):
    log = args.work / "callgrind.out"
    said = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={log}", BUILD / "bin/quire-generate", model,
         "--dtype", "bfloat16", "--cpu-isa", "avx2", "--threads", "1", "--skip-tokenizer-init", "--prompt-ids", "1,2,3,4,5,6,7,8",
         "--max-tokens", str(tokens), "--temperature", "0", "--ignore-eos", "--max-model-len", "512", "--num-gpu-blocks-override", "64",
         "--json", *map(str, options)], capture_output=True, text=True)
    found = re.findall(r"Collected : (\d+)", said.stderr)  # the last: a process that tries the plugin comes before
    if said.returncode != 0 or not found:
        raise SystemExit(f"terra.py: valgrind: {said.stderr[-2000:]}")
    return int(found[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="98m")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=["bf16", "batch", "int8"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/terra")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    for name in ("whole", "check", "overhead", "prepare-only"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    if not set(args.rows) <= set(ROWS) or ("bf16" not in args.rows and QUANTIZED & set(args.rows)):
        parser.error(f"--rows takes {', '.join(ROWS)}; the ratios of int8 and int8kv are to generate() in the row bf16, which comes first")
    args.work.mkdir(parents=True, exist_ok=True)
    rollout.threads = args.threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])  # of the children too
    load = os.getloadavg()[0]
    folder, child = prepare(args, SHAPES[args.shape])
    if args.overhead:
        child.close()
        return overhead(args, folder)
    checked = check(folder, child, args.tokens) if args.check else None
    torch = child.ask(do="load", folder=str(folder), dtype="bfloat16")["torch"]
    if not args.prepare_only:
        results = measure(args, folder, child)
        text = table(args, results, load if load > QUIET_LOAD else None, torch)
        print(text)
        if args.out:
            args.out.write_text(text)
        if args.json:
            args.json.write_text(json.dumps({"shape": args.shape, "tokens": args.tokens, "machine": machine(), "seconds": results,
                                             "check": checked}, indent=1))
    child.close()


if __name__ == "__main__":
    main()
