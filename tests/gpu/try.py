# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh without a card. Its programs, nvidia-smi, compute-sanitizer and torch are stubs, so what is tried is the
script itself: what it says without a card, that a job with a result is not run again, that every way in which a program can
end (wrong answers, a crash, garbage, no end at all, no time left, our own bug) costs one job and is in results.json."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gpu"))
import clocks  # noqa: E402
STUBS = {
    "nvidia-smi": """
if args[-1].startswith("-lms="):
    for bits in (1, 4, 0x24): print(f"{1980 - bits}, 612.5, 61, 0x{bits:016x}", flush=True)
    time.sleep(600)
print("NVIDIA Stub, 1024 MiB,", mode or "580.1")
""",
    "ncu": """
if "--clock-control" not in args or "--once" not in args: sys.exit("ncu: of a card that is shared")
print("  attention_kernel (1, 1, 1)x(128, 1, 1)\\n    Section: GPU Speed Of Light Throughput")
""",
    "compute-sanitizer": """
if "--version" in args: print("Version 2025.3"); sys.exit(0)
if mode == "refused":
    print("========= Error: Device not supported. Please refer to the documentation"); sys.exit(1)
print("========= COMPUTE-SANITIZER\\n========= Invalid __global__ read of size 4 bytes") if mode == "found" else None
print("========= ERROR SUMMARY: %d errors" % (3 if mode == "found" else 0))
sys.exit(9 if mode == "found" else 0)
""",
    "cuda_check_card": """
if "--list" in args:
    print("embed\\nlinear\\nattention\\nsample"); sys.exit(0)
op = args[args.index("--op") + 1]
if mode == "hang": time.sleep(600)
if mode == "crash" and op == "linear":
    print("cuda_check_card: an illegal memory access"); os.kill(os.getpid(), 11)
wrong = mode == "wrong" and op == "linear"
print("Stub\\n" + ("FAIL" if wrong else "ok  "), op, "        12 comparisons      3 ms")
sys.exit(wrong)
""",
    "cuda_bench": """
def row(op, shape, ms, n_bytes, flop):
    print(json.dumps({"op": op, "shape": shape, "median_ms": ms, "best_ms": ms, "bytes": n_bytes, "flop": flop}), flush=True)
if mode == "hang" or mode == "trial" and "wgmma" not in os.environ.get("QUIRE_CUDA_OFF", ""): time.sleep(600)
print(json.dumps({"card": "Stub", "note": "attention of prompts by wgmma"}))
row("copy", "1024 MiB", 2.0, 2e9, 0)
if "copy" in args: sys.exit(0)
row("attention", "BF16 64 x 4096, 1 of them new, heads 64/8 of 128", 1.0, 9e8, 1e9)
if mode == "crash":
    print('{"op": "cut o', end="", flush=True); sys.exit(1)
row("attention", "BF16 1 x 8192, 8192 of them new, heads 32/8 of 128", 1.0, 1e8, 5e11)
""",
    "quire-generate": """
if mode == "crash": sys.exit("quire-generate: no memory: 3 of 4 GiB are taken")
if mode and mode.startswith("pid "):
    open(mode[4:] + ".new", "w").write(str(os.getpid())); os.rename(mode[4:] + ".new", mode[4:]); time.sleep(600)
if args[0].endswith("mixtral"): sys.exit("mixtures of experts with one that all tokens use run on the CPU only so far; use --device cpu")
if mode == "hang": time.sleep(600)
if mode == "garbage": print("{not json"); sys.exit(0)
golden = {}
if os.path.exists(args[0] + "/golden.json"):
    golden = {json.dumps(p["ids"]): p["greedy"] for p in json.load(open(args[0] + "/golden.json"))["prompts"]}
rows = [json.loads(l) for l in open(args[args.index("--input-file") + 1])]
for i, row in enumerate(rows):
    ids = list(golden.get(json.dumps(row["prompt"]), range(row["max_tokens"])))
    if mode == "wrong" and "--enforce-eager" in args and i == 0: ids[-1] += 1
    if mode == "other" and "cpu" not in args: ids = [i + 1 for i in ids]
    ids = ids[:row["max_tokens"]]
    print(json.dumps({"prompt": i, "token_ids": ids, "logprobs": [{"token_id": t, "logprob": -0.5, "top": []} for t in ids]}))
""",
    "quire-bench": """
if "Qwen3-30B-A3B" in args[1]: sys.exit("quire bench: architecture Qwen3MoeForCausalLM is not supported")
if mode == "crash": sys.exit("quire bench: out of memory")
if mode == "nothing": sys.exit(0)
row = {"batch_size": 1, "input_len": 1024, "decode_tok_s": 800.0, "ttft_ms": 10.0, "step_bytes": 1e9, "prefill_ops": 1e12}
if args[0] != "latency": row = {"output_tokens_per_second": 13000.0, "output_throughput": 12000.0}
text = json.dumps({"results": [row]})
open(args[args.index("--json") + 1], "w").write(text[:20] if mode == "cut" else text)
""",
    "quire-serve": """
import http.server
if mode == "crash": sys.exit("quire-serve: no such device")
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(args[args.index("--port") + 1])), Ready).serve_forever()
""",
}
TORCH = {"absent": "raise ImportError('torch is a stub')", "crash": "raise RuntimeError('a kernel is missing')", "hang": "import time; time.sleep(600)"}
PARTS = ["machine", "ceilings", "kernels", "goldens", "sanitizer", "bench", "torch", "profile"]


class Script:
    """run.sh with its programs in a folder of its own."""

    def __init__(self, folder):
        self.bin, self.out, self.torch = folder / "bin", folder / "out", folder / "torch"
        self.bin.mkdir()
        self.torch.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        self.env.update(BIN=str(self.bin), OUT=str(self.out), PATH="/usr/bin:/bin", PYTHONPATH=str(self.torch), TMPDIR=str(folder))
        self.torch_is("absent")

    def torch_is(self, how):
        (self.torch / "torch.py").write_text(TORCH[how])

    def put_stubs(self):
        for name, code in STUBS.items():
            path = self.bin / name
            path.write_text(f"#!{sys.executable} -IS\nimport json, os, sys, time\nargs = sys.argv[1:]\n"
                            f"mode = os.environ.get('STUB_{name.replace('-', '_')}')\n{code}")
            path.chmod(0o755)
        self.env["PATH"] = f"{self.bin}:{self.env['PATH']}"

    def command(self, *args, small=True, **stubs):
        env = {**self.env, **{f"STUB_{k}": v for k, v in stubs.items()}}
        return subprocess.Popen(["sh", "tests/gpu/run.sh", *(["--small"] if small else []), *args], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def run(self, *args, **stubs):
        process = self.command(*args, **stubs)
        text = process.communicate()[0]
        return process.returncode, text

    def jobs(self):
        return json.loads((self.out / "results.json").read_text())["jobs"]

    def page(self):
        return (self.out / "page.md").read_text()


def check(what, holds, text=""):
    if not holds:
        sys.exit(f"{what}; it said:\n{text}")


def without_a_card(s):
    rc, text = s.run()
    check("without a card it must say so", rc == 1 and "no nvidia-smi" in text, text)
    check("and leave nothing", not s.out.exists())
    rc, text = s.run("kernals")
    check("an unknown part is refused", rc == 2 and 'no part "kernals"' in text, text)


def all_of_it(s):
    rc, text = s.run()
    check("all parts pass", rc == 0 and "FAIL" not in text, text)
    files = sorted(p.name for p in s.out.iterdir())
    check("four files", files == ["log.txt", "page.md", "profile.txt", "results.json"], str(files))
    check("the bars come last", "| decode attention, 64 sequences" in text[-1500:], text)
    jobs, page = s.jobs(), s.page()
    check("every part has jobs", {name.split("/")[0] for name in jobs} == set(PARTS), text)
    check("a family that the programs do not know is skipped", "not supported" in jobs["bench/Qwen3-30B-A3B latency"]["why"], text)
    check("and what it does not do on a card", jobs["goldens/mixtral graphs"]["status"] == "skipped", text)
    check("and so is torch", jobs["torch/kernels"]["status"] == "skipped", text)
    check("bars and verdicts", "| 0.9 of bandwidth | - | 0.8 | 0.92 | bar |" in page and "500.0 TFLOP/s" in page
          and "| 0.8 of bandwidth | - | 0.8 | 0.93 | bar |" in page and "| 0.923 of the offline figure |" in page
          and "13000 output tokens/s" in page and "not measured" in page and "NVIDIA Stub" in page, page)
    check("start to ready was measured", "start_to_ready_s" in page, page)
    check("the order is that of what matters most", list(jobs).index("bench/Llama-3-8B latency") < list(jobs).index("goldens/llama eager"))
    checks = [name for name in jobs if name.startswith("kernels/check")]
    check("and of checks", checks == [f"kernels/check {op}" for op in ("linear", "attention", "sample", "embed")], str(checks))
    n = len(jobs) - 1  # the machine is looked at again
    rc, text = s.run(nvidia_smi="581.2")
    check("what has a result is not run again, with another driver neither", rc == 0 and f"{n} have;" in text and "580.1, 581.2" in s.page(), text)
    elsewhere(s, n)
    whole = s.command("ceilings", small=False)
    text = whole.communicate()[0]
    check("results of toy shapes are not those of others", "are left out" in text and " have" not in text, text)
    s.run("ceilings")
    (s.bin / "quire-bench").write_text((s.bin / "quire-bench").read_text() + "# another build\n")
    rc, text = s.run("ceilings")
    check("of other programs' results torch's are kept", rc == 0 and "are left out" in text and "1 ok, 1 have" in text, text)


def elsewhere(s, n):
    """On another machine: results come along in a folder, and are there again afterwards."""
    first, s.env["OUT"] = s.out, str(s.out.parent / "fresh")
    rc, text = s.run("--with", str(first), "--with", str(first.parent / "nowhere"))
    check("a folder that came along is read", rc == 0 and f"{n} have;" in text, text)
    kept = [json.loads((p / "results.json").read_text()) for p in (first, first.parent / "nowhere", first.parent / "fresh")]
    check("and kept up to date", kept[0] == kept[1] == kept[2])
    s.env["OUT"] = str(first)


def one_bad_end(s, part, job, said, *options, others="ok", **stubs):
    """A job that fails, and another of its part that does not."""
    rc, text = s.run(part, "--again", *options, **stubs)
    jobs = {k: v for k, v in s.jobs().items() if k.startswith(part)}
    name = f"{part}/{job}"
    check(f"{stubs}: {name} fails", rc == 1 and jobs[name]["status"] == "FAIL" and said in jobs[name]["why"], text)
    check(f"{stubs}: others go on", any(v["status"] == others for v in jobs.values()), text)
    check(f"{stubs}: it is on the page", f"FAIL {job}" in s.page(), s.page())
    return jobs[name]


def bad_ends(s):
    llama = ("--job", "/llama ")
    rows = one_bad_end(s, "kernels", "check linear", "ended with 1", cuda_check_card="wrong", compute_sanitizer="found")["rows"]
    check("rows are kept, and it was asked why", rows[0]["ok"] is False and "Invalid __global__ read" in rows[1]["memcheck"])
    one_bad_end(s, "kernels", "check linear", "ended with -11", cuda_check_card="crash")
    check("rows before a crash are kept", len(one_bad_end(s, "kernels", "speed", "ended with 1", cuda_bench="crash")["rows"]) == 1)
    one_bad_end(s, "goldens", "llama eager", "answers differ", *llama, quire_generate="wrong")
    one_bad_end(s, "goldens", "as the CPU Llama-3-8B", "part where the CPU is sure", "--job", "as the CPU", others="FAIL", quire_generate="other")
    one_bad_end(s, "goldens", "llama eager", "3 of 4 GiB", *llama, others="FAIL", quire_generate="crash")
    one_bad_end(s, "goldens", "llama eager", "answers differ", *llama, others="FAIL", quire_generate="garbage")
    check("findings are counted", one_bad_end(s, "sanitizer", "memcheck steps", "ended with 9", "--job", "steps", others="FAIL",
                                              compute_sanitizer="found")["rows"][0]["findings"] == 3)
    bench = ("--job", "Llama-3-8B|30B")
    one_bad_end(s, "bench", "Llama-3-8B latency", "out of memory", *bench, others="skipped", quire_bench="crash")
    one_bad_end(s, "bench", "Llama-3-8B latency", "ended with 0", *bench, others="skipped", quire_bench="nothing")
    one_bad_end(s, "bench", "Llama-3-8B latency", "JSONDecodeError", *bench, others="skipped", quire_bench="cut")
    one_bad_end(s, "bench", "Llama-3-8B http", "no such device", *bench, quire_serve="crash")
    s.torch_is("crash")
    one_bad_end(s, "torch", "kernels", "a kernel is missing", others="FAIL")
    s.torch_is("absent")
    rc, text = s.run("sanitizer", "--again", "--job", "steps", compute_sanitizer="refused")
    check("a card that cannot be watched is no failure", rc == 0 and "not supported" in text and "2 skipped" in text, text)
    (s.bin / "cuda_bench").rename(s.bin / "away")
    one_bad_end(s, "kernels", "speed", "no cuda_bench")
    (s.bin / "away").rename(s.bin / "cuda_bench")
    s.run("kernels")
    one_bad_end(s, "kernels", "speed", "ended with 1", cuda_bench="crash")
    rc, text = s.run("kernels")
    check("what failed is run again, the rest is not", rc == 0 and "2 ok" in text and "4 have" in text, text)
    rc, text = s.run("kernels", "--again", "--patience", "0.01", cuda_check_card="hang", cuda_bench="hang")
    check("a card that does not answer ends the run", rc == 1 and "does not answer any more" in text and text.count("FAIL") == 1, text)
    rc, text = s.run("ceilings", "--again", "--job", "copy", "--patience", "0.15", cuda_bench="trial")
    check("a kernel that hangs on trial is done without", rc == 1 and "QUIRE_CUDA_OFF=wgmma,overlap" in text, text)
    rc, text = s.run("ceilings", "--job", "copy", cuda_bench="trial")
    check("and from then on", rc == 0 and "1 ok" in text, text)
    s.run("kernels", "--again")


def no_time(s):
    s.run("goldens", "--job", "llama eager")
    before = s.jobs()["goldens/llama eager"]
    rc, text = s.run("goldens", "--again", "--job", "llama eager", "--minutes", "0.03", quire_generate="hang")
    check("what never ends is ended, and left to the next run", rc == 0 and "1 not reached" in text and "goes on" in text, text)
    check("and what was known of it stays", s.jobs()["goldens/llama eager"] == before)
    s.torch_is("hang")
    rc, text = s.run("torch", "--again", "--minutes", "0.03")
    check("torch that hangs takes nothing along", rc == 0 and "5 not reached" in text, text)
    s.torch_is("absent")


def stopped(s):
    """Ended from outside in the middle of a job: it says so, and the program that it started is gone."""
    pid = s.out / "pid"
    process = s.command("goldens", "--again", "--job", "llama eager", quire_generate=f"pid {pid}")
    while not pid.exists() and process.poll() is None:
        time.sleep(0.02)
    child = int(pid.read_text())
    process.send_signal(signal.SIGTERM)
    text = process.communicate()[0]
    check("it ends with an error and says why", process.returncode != 0 and "stopped" in text, text)
    try:
        os.kill(child, 0)
        check("its program runs on", False)
    except ProcessLookupError:
        pid.unlink()


def clocks_beside(s):
    """Sampled until there is what the stub says, however slow this machine is."""
    os.environ["PATH"], before = s.env["PATH"], os.environ["PATH"]
    try:
        with clocks.Clocks(s.out) as sampled:
            found = []
            while len(found) < 3 and sampled.process.poll() is None:
                found += sampled.since()
                time.sleep(0.05)
    finally:
        os.environ["PATH"] = before
    want = {"SM MHz": "1944 to 1976", "W": 612.5, "degrees": 61.0, "held back by": "power, heat"}
    check("clocks beside a figure, idle samples left out", clocks.summary(found) == want, str(clocks.summary(found)))
    check("no figure without samples", clocks.summary([]) == {} and clocks.sample("[N/A], 1, 2, 0x0") is None)


def broken_store(s):
    for text in ("", "{", "[]", '{"card": "NVIDIA Stub, 1024 MiB"}'):
        (s.out / "results.json").write_text(text)
        rc, said = s.run("ceilings")
        check(f"results.json of {text!r} is begun anew", rc == 0 and "cannot be read" in said and len(s.jobs()) == 2, said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        s = Script(pathlib.Path(folder))
        without_a_card(s)
        s.put_stubs()
        all_of_it(s)
        s.run("kernels", "bench")
        clocks_beside(s)
        bad_ends(s)
        no_time(s)
        stopped(s)
        broken_store(s)
    print("ok   tests/gpu/run.sh")


if __name__ == "__main__":
    main()
