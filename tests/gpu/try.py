# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh without a card: its programs, nvidia-smi and compute-sanitizer are stubs, so what is tried is the
script itself. What it says without a card; every part's files; that a part with a result is not run again; that a
part which fails fails the script and no other part."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUBS = {
    "nvidia-smi": 'print("NVIDIA Stub, 580.1, 1024 MiB")',
    "compute-sanitizer": "",
    "cuda_check_card": """
import os
bad = os.path.exists(os.path.join(os.path.dirname(__file__), "broken"))
print("Stub\\nok   embed 12 comparisons 3 ms\\n" + ("FAIL" if bad else "ok  ") + " linear 7 comparisons 1 ms")
sys.exit(bad)
""",
    "quire-generate": """
golden = json.load(open(args[0] + "/golden.json"))
rows = [json.loads(l) for l in open(args[args.index("--input-file") + 1])]
for i, row in enumerate(rows):
    want = next(p["greedy"] for p in golden["prompts"] if p["ids"] == row["prompt"])
    print(json.dumps({"prompt": i, "token_ids": want[:row["max_tokens"]]}))
""",
    "quire-bench": """
row = {"batch_size": 1, "input_len": 1024, "decode_tok_s": 100.0, "ttft_ms": 10.0, "step_bytes": 1e9, "prefill_ops": 1e12}
json.dump({"results": [row]}, open(args[args.index("--json") + 1], "w"))
""",
}


def run(env, *args):
    done = subprocess.run(["sh", "tests/gpu/run.sh", *args], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def check(what, holds, text):
    if not holds:
        sys.exit(f"{what}; it said:\n{text}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        bin_ = pathlib.Path(folder) / "bin"
        out = pathlib.Path(folder) / "out"
        bin_.mkdir()
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        env.update(BIN=str(bin_), OUT=str(out), PATH="/usr/bin:/bin")
        rc, text = run(env)
        check("without a card it must say so", rc == 1 and "no nvidia-smi" in text, text)
        for name, code in STUBS.items():
            path = bin_ / name
            path.write_text(f"#!{sys.executable} -IS\nimport json, sys\nargs = sys.argv[1:]\n{code}")
            path.chmod(0o755)
        env["PATH"] = f"{bin_}:{env['PATH']}"
        rc, text = run(env)
        check("all parts pass", rc == 0 and "FAIL" not in text, text)
        parts = ["ceilings", "kernels", "goldens", "sanitizer", "bench", "torch"]
        check("every part has a file", all((out / f"{p}.json").exists() for p in parts), text)
        page = (out / "page.md").read_text()
        check("the page has the card and every part", all(p in page for p in ["NVIDIA Stub", "Qwen3-30B-A3B", *parts]), page)
        rc, text = run(env)
        check("what has a result is not run again", rc == 0 and text.count("have ") == len(parts), text)
        ceilings = json.loads((out / "ceilings.json").read_text())
        ceilings["results"] = [{"bytes_s": 1e12, "bf16_flop_s": 2e14}]
        (out / "ceilings.json").write_text(json.dumps(ceilings))
        rc, text = run(env, "--again", "bench")
        page = (out / "page.md").read_text()
        check("figures are fractions of the ceilings", "decode_of_bandwidth 0.1" in page and "prefill_of_peak 0.5" in page, page)
        (bin_ / "broken").touch()
        rc, text = run(env, "--again", "kernels", "sanitizer")
        check("a failure is one, and other parts go on", rc == 1 and "ok   racecheck" in text, text)
        rc, text = run(env, "kernels")
        check("what failed is run again", rc == 1 and "have " not in text, text)
    print("ok   tests/gpu/run.sh")


if __name__ == "__main__":
    main()
