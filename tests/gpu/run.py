# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/gpu/run.sh. Each writes OUT/PART.json; the page is made of all that are there."""
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
        if not golden.get("prompts") or "greedy" not in golden["prompts"][0] or name == "llama-rope-dynamic":
            continue
        if "quantization_config" in json.loads((path.parent / "config.json").read_text()):
            continue
        prompts = [(p["ids"], len(p["greedy"])) for p in golden["prompts"]]
        want = [p["greedy"] for p in golden["prompts"]]
        for how, more in (("graphs", []), ("eager", ["--enforce-eager"]), ("one at a time", ["--max-num-seqs", "1"])):
            got = generate(o, name, prompts, more)
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


def bench(o):
    results = []
    for name, config in SHAPES.items():
        if o.shape and name != o.shape:
            continue
        folder = o.out / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        common = [folder, "--load-format", "dummy", "--skip-tokenizer-init", "--no-roofline", *device()]
        runs = {
            "latency": ["latency", *common, "--batch-size", "1,8,64", "--input-len", "1024", "--output-len", "64", "--repeats", "3"],
            "throughput": ["throughput", *common, "--num-prompts", "512", "--input-len", "1024", "--output-len", "128"],
        }
        for kind, args in runs.items():
            out = o.out / f"{name}-{kind}.json"
            start = time.monotonic()
            run([o.bin / "quire-bench", *args, "--json", out], o.out / "bench.log")
            results.append({"shape": name, "kind": kind, "seconds": round(time.monotonic() - start, 1),
                            "results": json.loads(out.read_text())["results"]})
            print(f"ok   {name} {kind}: {out}")
    return results, 0


PARTS = {"kernels": kernels, "goldens": goldens, "sanitizer": sanitizer, "bench": bench}


def card():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True).stdout.strip()
    except OSError:
        return "no nvidia-smi"


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
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for part in o.parts or PARTS:
        start = time.monotonic()
        results, bad = PARTS[part](o)
        failures += bad
        (o.out / f"{part}.json").write_text(json.dumps(
            {"card": card(), "seconds": round(time.monotonic() - start, 1), "bad": bad, "results": results}, indent=1))
        page(o)
    print(f"{o.out}/page.md")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
