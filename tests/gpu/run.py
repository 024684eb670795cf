# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run.sh. Each writes OUT/PART.json; the page is made of all that are there.

A part that has a result of this card and of these programs is not run again (--again does), so a run
that was cut off goes on. Every figure of `bench` and `torch` stands beside the card's ceilings as the part
`ceilings` measured them in the same run: bytes a second of a copy, FLOP a second of a bf16 product."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

MODELS = pathlib.Path("tests/data/models")
COMMON = {"hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 500000.0, "torch_dtype": "bfloat16"}
SHAPES = {
    "Llama-3-8B": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
                   "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                   "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    "Qwen2.5-0.5B": {**COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
                     "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
}
CANNOT = {"Qwen3-30B-A3B": "Qwen3MoeForCausalLM is no family of engine/model yet: no routing, no grouped product of experts"}
BATCHES, INPUT, OUTPUT = (1, 8, 64), 1024, 64
SECONDS = {"ceilings": 30, "kernels": 90, "goldens": 120, "sanitizer": 90, "bench": 150, "torch": 60}  # below 9 minutes together


def device():
    return ["--device", os.environ.get("QUIRE_DEVICE", "cuda")]


def run(args, log, **more):
    """Run to the end; its standard output. What it says goes to the log, and stops us when it fails."""
    with open(log, "a") as out:
        out.write("$ " + " ".join(map(str, args)) + "\n")
        out.flush()
        done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=out, text=True, **more)
        out.write(done.stdout)
    if done.returncode:
        tail = pathlib.Path(log).read_text()[-2000:]
        raise SystemExit(f"{args[0]} ended with {done.returncode}; {log} ends with:\n{tail}")
    return done.stdout


def kernels(o):
    """Every operation's checks; one result for each."""
    places = [o.bin / "cuda_check_card", o.bin.parent / "tests/cuda_check_card"]
    program = next((p for p in places if p.exists()), None)
    if not program:
        raise SystemExit(f"run.sh kernels: no cuda_check_card at {' or '.join(map(str, places))}; build it: cmake --build --preset cuda")
    done = subprocess.run([program, "--seed", "1", "--times", "5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (o.out / "kernels.log").write_text(done.stdout)
    print(done.stdout, end="")
    lines = [line.split() for line in done.stdout.splitlines()]
    results = [{"op": w[1], "comparisons": int(w[2]), "ok": w[0] == "ok"} for w in lines if len(w) > 3 and w[3] == "comparisons"]
    bad = sum(not r["ok"] for r in results)
    return results, bad if bad or done.returncode == 0 else 1


def generate(o, model, prompts, more):
    """Greedy tokens of prompts [(ids, n_new)], all computed together."""
    source = o.out / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True}) + "\n"
                              for ids, n in prompts))
    text = run([o.bin / "quire-generate", MODELS / model, "--skip-tokenizer-init", "--dtype", "float32", "--log-level", "info",
                "--input-file", source, *device(), *more], o.out / "goldens.log")
    rows = [json.loads(line) for line in text.splitlines()]
    return [r["token_ids"] for r in sorted(rows, key=lambda r: r["prompt"])]


def goldens(o):
    """Every causal golden; exit 1 when a token differs."""
    results, bad = [], 0
    for path in sorted(MODELS.glob("*/golden.json")):
        golden = json.loads(path.read_text())
        name = path.parent.name
        if not golden.get("prompts") or "greedy" not in golden["prompts"][0]:
            continue
        if "quantization_config" in json.loads((path.parent / "config.json").read_text()):
            continue
        prompts = [(p["ids"], len(p["greedy"])) for p in golden["prompts"]]
        want = [p["greedy"] for p in golden["prompts"]]
        longest = ["--max-model-len", "160"] if name == "llama-rope-dynamic" else []  # beyond what it was trained for
        for how, more in (("graphs", []), ("eager", ["--enforce-eager"]), ("one at a time", ["--max-num-seqs", "1"])):
            got = generate(o, name, prompts, [*longest, *more])
            wrong = sum(a != b for a, b in zip(got, want))
            bad += wrong
            results.append({"model": name, "how": how, "prompts": len(want), "wrong": wrong})
            print(f"{'FAIL' if wrong else 'ok  '} {name:24} {how:14} {len(want) - wrong} of {len(want)} prompts")
    return results, bad


def sanitizer(o):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(tool).exists():
        print("skip sanitizer: no compute-sanitizer")
        return [{"skipped": "no compute-sanitizer"}], 0
    results, bad = [], 0
    for check in ("memcheck", "racecheck"):
        for more in (["--enforce-eager"], []):
            start = time.monotonic()
            args = [tool, "--tool", check, "--error-exitcode", "9", str(o.bin / "quire-generate"), str(MODELS / "llama-bias-tied"),
                    "--skip-tokenizer-init", "--dtype", "bfloat16", "--prompt-ids", "1,2,3,4,5,6,7,8,9", "--max-tokens", "8",
                    "--max-num-seqs", "4", "--num-gpu-blocks-override", "64", *device(), *more]
            with open(o.out / "sanitizer.log", "a") as log:
                rc = subprocess.run(args, stdout=log, stderr=log).returncode
            bad += rc != 0
            results.append({"tool": check, "options": more, "exit": rc, "seconds": round(time.monotonic() - start, 1)})
            print(f"{'FAIL' if rc else 'ok  '} {check} {' '.join(more)}")
    return results, bad


def torch_code(o, name, code, *args):
    """A piece of Python in another process, where torch may be; its last line is JSON. None: no torch, and why is printed."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open(o.out / "torch.log", "a") as log:
        log.write(f"$ {name} {args}\n{done.stdout}{done.stderr}\n")
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"skip {name}: {why}")
    return None


CEILINGS = """
import json, torch
def seconds(fn, n):
    fn(); torch.cuda.synchronize()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); [fn() for _ in range(n)]; b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b) / 1e3 / n
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); y = torch.empty_like(x)
copy = 2 * x.numel() / min(seconds(lambda: y.copy_(x), 10) for _ in range(3))
n = 8192; a = torch.randn(n, n, dtype=torch.bfloat16, device="cuda"); c = torch.empty_like(a)
flop = 2 * n ** 3 / min(seconds(lambda: torch.matmul(a, a, out=c), 10) for _ in range(3))
print(json.dumps({"bytes_s": copy, "bf16_flop_s": flop, "torch": torch.__version__}))
"""


def ceilings(o):
    """What the card does at best, by torch: nothing of ours is measured against itself."""
    found = torch_code(o, "ceilings", CEILINGS)
    if found is None:
        return [{"skipped": "no torch here: figures have no fractions"}], 0
    print(f"ok   ceilings: {found['bytes_s'] / 1e12:.2f} TB/s, {found['bf16_flop_s'] / 1e12:.0f} TFLOP/s bf16")
    return [found], 0


def fractions(o, row):
    """Of the ceilings of this run: what a step reads, what a prompt multiplies."""
    path = o.out / "ceilings.json"
    limit = json.loads(path.read_text())["results"][0] if path.exists() else {}
    if "bytes_s" not in limit or not row.get("decode_tok_s"):
        return {}
    out = {"decode_of_bandwidth": round(row["step_bytes"] * row["decode_tok_s"] / row["batch_size"] / limit["bytes_s"], 3)}
    if row.get("ttft_ms"):
        out["prefill_of_peak"] = round(row["prefill_ops"] / (row["ttft_ms"] / 1e3) / limit["bf16_flop_s"], 3)
    return out


def bench(o):
    results = [{"shape": name, "skipped": why} for name, why in CANNOT.items()]
    for result in results:
        print(f"skip bench {result['shape']}: {result['skipped']}")
    for name, config in SHAPES.items():
        if o.shape and name != o.shape:
            continue
        folder = o.out / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        common = [folder, "--load-format", "dummy", "--skip-tokenizer-init", "--no-roofline", *device()]
        runs = {
            "latency": ["latency", *common, "--batch-size", ",".join(map(str, BATCHES)), "--input-len", INPUT, "--output-len", OUTPUT,
                        "--repeats", "3"],
            "throughput": ["throughput", *common, "--num-prompts", "512", "--input-len", INPUT, "--output-len", "128"],
        }
        for kind, args in runs.items():
            out = o.out / f"{name}-{kind}.json"
            start = time.monotonic()
            run([o.bin / "quire-bench", *args, "--json", out], o.out / "bench.log")
            rows = [{**row, **fractions(o, row)} for row in json.loads(out.read_text())["results"]]
            results.append({"shape": name, "kind": kind, "seconds": round(time.monotonic() - start, 1), "results": rows})
            print(f"ok   {name} {kind}: {out}")
    return results, 0


TORCH = """
import json, sys, time, torch
from transformers import AutoConfig, AutoModelForCausalLM
folder, n_in, n_out, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
batches = [int(b) for b in sys.argv[5].split(",")]
torch.manual_seed(0); torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa").eval()
if how == "compiled":
    model.generation_config.cache_implementation = "static"
    model.forward = torch.compile(model.forward, mode="reduce-overhead")
rows = []
for batch in batches:
    ids = torch.randint(5, 1000, (batch, n_in), device="cuda")
    def take(n):
        torch.cuda.synchronize(); start = time.perf_counter()
        model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
        torch.cuda.synchronize(); return time.perf_counter() - start
    with torch.inference_mode():
        take(1); take(n_out); first = min(take(1) for _ in range(2)); whole = min(take(n_out) for _ in range(2))
    rows.append({"how": how, "batch_size": batch, "ttft_ms": first * 1e3, "decode_tok_s": batch * (n_out - 1) / (whole - first)})
print(json.dumps(rows))
"""


def beside_torch(o):
    """transformers' generate on the same shapes: attention by torch's SDPA; and the forward pass compiled, with graphs."""
    results = []
    for name, config in SHAPES.items():
        folder = o.out / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        for how in ("sdpa", "compiled"):
            if o.shape and name != o.shape:
                continue
            found = torch_code(o, f"torch {name} {how}", TORCH, folder, INPUT, OUTPUT, how, ",".join(map(str, BATCHES)))
            results.append({"shape": name, "how": how, "results": found} if found else
                           {"shape": name, "how": how, "skipped": "no torch or no transformers, or it failed: torch.log"})
            if found:
                print(f"ok   torch {name} {how}")
    return results, 0


PARTS = {"ceilings": ceilings, "kernels": kernels, "goldens": goldens, "sanitizer": sanitizer, "bench": bench, "torch": beside_torch}


def card(needed=False):
    """Its name, driver and memory. `needed`: to end with what is missing."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True)
    except OSError:
        done = None
    if done and done.returncode == 0 and done.stdout.strip():
        return done.stdout.strip()
    if needed:
        why = (done.stdout + done.stderr).strip() if done else "there is no nvidia-smi on this machine, so no driver"
        raise SystemExit(f"run.sh: no NVIDIA card to test on: {why}. (QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device.)")
    return os.environ.get("QUIRE_CUDA_LIBRARY") or "no card"


def programs(o):
    """Names what was run: a result of other programs is no result."""
    known = [o.bin / "quire-generate", o.bin / "quire-bench", o.bin.parent / "lib/libquire-cuda.so"]
    return [[p.name, p.stat().st_size, int(p.stat().st_mtime)] for p in known if p.exists()]


def is_there(o, part):
    path = o.out / f"{part}.json"
    if o.again or o.shape or not path.exists():
        return False
    before = json.loads(path.read_text())
    return before["card"] == card() and before.get("programs") == programs(o) and not before["bad"]


def page(o):
    lines = [f"# quire on {card() or 'no card'}", ""]
    for part in PARTS:
        path = o.out / f"{part}.json"
        if not path.exists():
            continue
        run_of = json.loads(path.read_text())
        lines += [f"## {part} ({run_of['seconds']} s, {run_of['bad']} failures)", ""]
        for row in run_of["results"]:
            for line in row.get("results", [row]):
                shown = {**{k: v for k, v in row.items() if k != "results"}, **line}
                lines.append("- " + ", ".join(f"{k} {v}" for k, v in shown.items()))
        lines.append("")
    (o.out / "page.md").write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--shape", help="of bench: only this one")
    parser.add_argument("--again", action="store_true", help="also what has a result of this card and these programs")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    o = parser.parse_args()
    if "QUIRE_CUDA_LIBRARY" not in os.environ and not device()[1].startswith("cpu"):
        card(needed=True)
    o.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for part in o.parts or PARTS:
        if is_there(o, part):
            print(f"have {part}: {o.out}/{part}.json (--again runs it again)")
            continue
        start = time.monotonic()
        try:
            results, bad = PARTS[part](o)
        except SystemExit as e:  # the others are run all the same
            print(f"FAIL {part}: {e}")
            results, bad = [{"failed": str(e)}], 1
        took = time.monotonic() - start
        if took > SECONDS[part]:
            print(f"slow {part}: {took:.0f} s, {SECONDS[part]} are its part of the 9 minutes")
        failures += bad
        (o.out / f"{part}.json").write_text(json.dumps(
            {"card": card(), "programs": programs(o), "seconds": round(time.monotonic() - start, 1), "bad": bad, "results": results}, indent=1))
        page(o)
    print(f"{o.out}/page.md")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
