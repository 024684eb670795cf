# SPDX-License-Identifier: Apache-2.0
"""quire beside llama.cpp and OpenVINO GenAI: models of the same shape with random weights, the same threads, in one run.

The engines alternate round by round, each in a fresh process; a row shows the median of the rounds, their spread, and quire's
ratio to the best peer of the row beside the bar it has to reach. On a busy machine the table says so in its first lines and goes
to --work instead of this folder: it is not to be committed (tests/e2e/test_bench.py). Usage:

    python3 tests/bench/peers.py [--shapes qwen05,llama1b] [--engines quire,llama,openvino] [--precisions bf16,int8,int4]
                                 [--rows "decode, 1 sequence; prefill"] [--rounds 5] [--threads N] [--work build/peers]
                                 [--rounds-of llama=1] [--out tests/bench/peers.md] [--json FILE] [--resume] [--no-install]
                                 [--prepare-only] [--cpu-isa avx512_bf16|avx2]

A virtual environment with the peers from PyPI (llama-cpp-python is compiled there) and the models are made in --work on first
use and kept. Children of this script measure one peer each (peers_child.py); the row over HTTP is peers_http.py's. Table and
JSON are written after each round, so that a run that is cut short leaves what it has found; with --resume a later run on the same
machine adds its rounds to those in --json. An engine that takes long and is never the best may be given fewer rounds (--rounds-of).
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import peers_http
import peers_isa

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
CHILD = HERE.with_name("peers_child.py")
PACKAGES = {  # what a peer and the making of its models need
    "llama": ["llama-cpp-python", "gguf", "numpy"],
    "openvino": ["openvino-genai", "optimum-intel[openvino,nncf]", "transformers", "tokenizers", "numpy"],
}
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # small; where it cannot be reached PyPI's torch does, which is large
REACH_S = 5
QUIET_LOAD = 0.3
# llama.cpp's tiles crash on some machines that have them: then its build for this machine goes without.
NO_TILES = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

COMMON = {"hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": True, "max_position_embeddings": 32768}
SHAPES = {
    "qwen05": {**COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
               "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
               "rope_theta": 1000000.0, "rms_norm_eps": 1e-6},
    "llama1b": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
                "vocab_size": 128256, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "tiny": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 2048,
             "rope_theta": 10000.0, "rms_norm_eps": 1e-5},  # to try the script out
}

SHAPES["qwen05s"] = {**SHAPES["qwen05"], "num_hidden_layers": 6, "vocab_size": 32768}  # for a busy machine, in rounds of a minute

# How each engine names a precision; of several the best counts. None: it has nothing of the kind.
VARIANTS = {
    "quire": {"bf16": [""], "int8": ["int8"], "int4": ["int4"]},
    "llama": {"bf16": ["BF16"], "int8": ["Q8_0"], "int4": ["Q4_0", "Q4_K_M"]},
    "openvino": {"bf16": ["fp16"], "int8": ["int8"], "int4": ["int4"]},  # fp16 weights computed in bf16
}

# kind, prompt tokens, new tokens, sequences; the bars of quire / best peer by precision.
PREFILL, DECODE = "prefill", "decode"
ROWS = [
    ("prefill 512", PREFILL, 512, 1, 1, {"bf16": 1.1, "int8": 1.3, "int4": 1.5}),
    ("prefill 2048", PREFILL, 2048, 1, 1, {"bf16": 1.1, "int8": 1.3, "int4": 1.5}),
    ("decode, 1 sequence", DECODE, 16, 128, 1, {"bf16": 1.15, "int8": 1.4, "int4": 1.4}),
    ("decode, 2 sequences", DECODE, 16, 64, 2, {"bf16": 1.4, "int8": 1.5, "int4": 2.0}),
    ("decode, 4 sequences", DECODE, 16, 64, 4, {"bf16": 1.4, "int8": 1.5, "int4": 2.0}),
    ("decode, 8 sequences", DECODE, 16, 64, 8, {"bf16": 1.4, "int8": 1.5, "int4": 2.0}),
    ("decode, 32 sequences, context 64-190", DECODE, 64, 128, 32, {"bf16": 1.3, "int8": 1.8, "int4": 2.5}),
    ("decode, 1 sequence at context 16 k", DECODE, 16384, 32, 1, {"bf16": 1.2}),
]
HTTP_PRECISION = "int8"
HTTP_ROWS = {peers_http.TOKENS: {HTTP_PRECISION: 3}, peers_http.TTFT: {HTTP_PRECISION: "≤ 0.2"}}
SPEEDS = {row[0] for row in ROWS}
CEILING = "of the ceiling"
LESS_IS_BETTER = {"peak rss", peers_http.TTFT}


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*args, **more):
    done = subprocess.run([str(a) for a in args], text=True, stdout=subprocess.PIPE, **more)
    if done.returncode:
        raise SystemExit(f"peers.py: {' '.join(map(str, args[:4]))} … ended with {done.returncode}")
    return done.stdout


def reachable(url):
    """So that pip does not try again and again where only PyPI can be reached."""
    try:
        urllib.request.urlopen(url, timeout=REACH_S).close()
    except urllib.error.HTTPError:
        return True  # it answers
    except OSError:
        return False
    return True


def ceilings(args):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run(BIN / "quire-bench", "roofline", "--threads", args.threads, "--no-progress", "--json", out.name, stderr=subprocess.DEVNULL,
            **peers_isa.limits(args.cpu_isa))
        return json.load(open(out.name, encoding="utf-8"))["machine"]


class Quire:
    """Ours: the verb that users have."""

    def __init__(self, args):
        self.threads, self.cpu_isa, self.parts = args.threads, args.cpu_isa, {}  # parts: of the read bandwidth, by row, of the last measurement
        self.ceilings = {} if args.prepare_only else ceilings(args)

    def prepare(self, shape, folder):
        (folder / "config.json").write_text(json.dumps(SHAPES[shape]))

    def measure(self, folder, variant, jobs):
        """{row's name: tokens per second}, peak resident MB"""
        speeds, peak = {}, 0.0
        for name, kind, n_in, n_out, batch in jobs:
            with tempfile.NamedTemporaryFile(suffix=".json") as out:
                more = ["--quantization", variant] if variant else []
                run(BIN / "quire-bench", "latency", folder, "--load-format", "dummy", "--dtype", "bfloat16", *more, "--input-len", n_in,
                    "--output-len", n_out, "--batch-size", batch, "--threads", self.threads, "--cpu-isa", self.cpu_isa, "--repeats", 1,
                    "--no-roofline", "--no-progress", "--json", out.name, stderr=subprocess.DEVNULL, **peers_isa.limits(self.cpu_isa))
                result = json.load(open(out.name, encoding="utf-8"))["results"][0]
            speed = speeds[name] = result["prefill_tok_s" if kind == PREFILL else "decode_tok_s"]
            if kind == DECODE:
                self.parts[name] = result["step_bytes"] / batch * speed / (self.ceilings["read_gb_s"] * 1e9)
            peak = max(peak, result["peak_rss_mb"])
        return speeds, peak

    def serve(self, folder, variant):
        return peers_http.measure(lambda port: [*peers_http.quire_command(BIN, folder, port, self.threads, variant), "--cpu-isa", self.cpu_isa],
                                  "/ready", BIN, folder / "quire-http.log", peers_isa.limits(self.cpu_isa))


class Peer:
    """One of theirs, by a child in its own environment."""

    def __init__(self, name, args):
        self.name, self.threads, self.cpu_isa = name, args.threads, args.cpu_isa
        self.build = peers_isa.llama_build(args.cpu_isa) if name == "llama" else {}
        venv = args.work / (f"venv-{name}-{args.cpu_isa}" if self.build else f"venv-{name}")
        self.python = venv / "bin/python"
        self.log = args.work / f"{name}.log"
        if not args.no_install:
            self.install(venv)
        if not self.python.exists():
            raise SystemExit(f"peers.py: {self.python} is missing and --no-install was given")

    def install(self, venv):
        mark = venv / "installed.txt"
        wanted = " ".join(PACKAGES[self.name])
        if mark.exists() and mark.read_text() == wanted:
            return
        say(f"installing {self.name} into {venv}")
        run(sys.executable, "-m", "venv", venv)
        if self.name == "openvino":
            extra = ["--extra-index-url", TORCH_INDEX] if reachable(TORCH_INDEX) else []
            run(self.python, "-m", "pip", "install", "-q", "torch", *extra)
        own = ["--no-cache-dir"] if self.build else []  # not a wheel that was compiled with other options
        run(self.python, "-m", "pip", "install", "-q", *own, *PACKAGES[self.name], env={**os.environ, **self.build})
        mark.write_text(wanted)

    def check(self, folder):
        """llama.cpp, built for this machine, must live through every precision of the smallest shape, else it is built again."""
        mark = self.python.parents[1] / "checked.txt"
        if self.name != "llama" or mark.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.prepare("tiny", folder)
        if not self.lives(folder):
            say(f"llama.cpp crashes as it is built; compiling it with {NO_TILES}")
            flags = {"CFLAGS": NO_TILES, "CXXFLAGS": NO_TILES}
            run(self.python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary",
                "llama-cpp-python", "llama-cpp-python", env={**os.environ, **self.build, **flags})
            if not self.lives(folder):
                raise SystemExit(f"peers.py: llama.cpp crashes without tiles too; see {self.log}")
            mark.write_text(NO_TILES)
            return
        mark.write_text("")

    def lives(self, folder):
        jobs = [("prefill", PREFILL, 64, 1, 1), ("decode", DECODE, 16, 8, 2)]
        try:
            for variant in (v for vs in VARIANTS[self.name].values() for v in vs):
                self.measure(folder, variant, jobs, "auto")
        except SystemExit:
            return False
        return True

    def flags(self):
        """What llama-server is to be compiled with: as the package is."""
        mark = self.python.parents[1] / "checked.txt"
        return mark.read_text() if mark.exists() else ""

    def child(self, job, cpu_isa="auto"):
        """What it says beside its answer is kept in a file: some peers say much."""
        with open(self.log, "w", encoding="utf-8") as log:
            out = run(self.python, CHILD, self.name, json.dumps({**job, "threads": self.threads}), stderr=log, **peers_isa.limits(cpu_isa))
        return json.loads(out.strip().splitlines()[-1])

    def prepare(self, shape, folder):
        variants = [v for vs in VARIANTS[self.name].values() for v in vs]
        missing = [v for v in variants if not (folder / self.name / v).exists()]
        if missing:
            say(f"making {shape} for {self.name}: {', '.join(missing)}")
            self.child({"do": "make", "config": SHAPES[shape], "folder": str(folder / self.name), "variants": missing})

    def measure(self, folder, variant, jobs, cpu_isa=None):
        answer = self.child({"do": "measure", "model": str(folder / self.name / variant),
                             "jobs": [dict(zip(("name", "kind", "n_in", "n_out", "batch"), j)) for j in jobs]}, cpu_isa or self.cpu_isa)
        return answer["speeds"], answer["peak_rss_mb"]

    def serve(self, folder, variant):
        """None: it has no server in a package."""
        if self.name != "llama":
            return None
        options = self.build.get("CMAKE_ARGS", "").split()
        work = self.python.parents[1] if options else folder.parent
        program = peers_http.build_server(self.python, work, self.threads, [f"-DCMAKE_{x}_FLAGS={self.flags()}" for x in ("C", "CXX")] + options)
        return peers_http.measure(lambda port: peers_http.llama_command(program, folder / self.name / variant, port, self.threads), "/health",
                                  BIN, folder / "llama-http.log", peers_isa.limits(self.cpu_isa))

    def version(self):
        package = PACKAGES[self.name][0]
        return run(self.python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))").strip()


def operations(shape, n_in):
    """Multiplications and additions that a prompt of n_in tokens needs: of products with weights, of attention. Only K and V of the
    last layer are needed of other tokens than the last."""
    c = SHAPES[shape]
    hidden, n_q, n_kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim", hidden // n_q)
    of_kv = hidden * width * 2 * n_kv
    others = hidden * width * 2 * n_q + 3 * hidden * c["intermediate_size"]
    whole = c["num_hidden_layers"] - 1
    weights = 2 * (whole * (of_kv + others) * n_in + of_kv * n_in + others + hidden * c["vocab_size"])
    return weights, 4 * n_q * width * (whole * n_in * (n_in + 1) // 2 + n_in)


def of_the_ceiling(shape, precision, row, speed, parts, runs):
    """quire's part of what memory and arithmetic allow. A step of decode takes at least the longer of reading and multiplying, which
    can overlap (tests/bench/README.md); parts: of the read bandwidth, as measured. A prompt multiplies: weights in the precision's
    type, attention in bf16."""
    peaks = [run["ceilings"] for run in runs if run["ceilings"]]
    weights, attention = (statistics.median(p[name] for p in peaks) * 1e9 for name in (
        "bf16_gop_s" if precision == "bf16" else "int8_gop_s", "bf16_gop_s"))
    kind, n_in = next(r[1:3] for r in ROWS if r[0] == row)
    if kind == DECODE:
        return max(statistics.median(parts), speed * operations(shape, 1)[0] / weights)
    of_weights, of_attention = operations(shape, n_in)
    return (of_weights / weights + of_attention / attention) * speed / n_in


def is_wanted(row, parts):
    """A part that is a row's whole name means that row alone."""
    names = [r[0] for r in ROWS] + [*HTTP_ROWS]
    return not parts or any(part == row or (part in row and part not in names) for part in parts)


def collect(args, engines, found, after_round):
    """Adds to {(shape, precision, row): {(engine, variant): [speed of each round]}}; the same with row "peak rss", and with
    CEILING for a variant quire's parts of the read bandwidth."""
    jobs_all = [row[:5] for row in ROWS if is_wanted(row[0], args.rows)]
    for shape in args.shapes:
        folder = args.work / shape
        folder.mkdir(parents=True, exist_ok=True)
        for engine in engines.values():
            engine.prepare(shape, folder)
        if args.prepare_only:
            continue
        for precision in args.precisions:
            jobs = [j for j in jobs_all if precision in dict((r[0], r[5]) for r in ROWS)[j[0]]]
            for i in range(args.rounds):
                for name in [n for n in list(engines)[::1 if i % 2 == 0 else -1] if i < args.rounds_of.get(n, args.rounds)]:
                    for variant in VARIANTS[name][precision]:
                        say(f"{shape} {precision}, round {i + 1} of {args.rounds}: {name} {variant}")
                        for row, value in measured(args, engines[name], folder, variant, precision, jobs).items():
                            got = found.setdefault((shape, precision, row), {})
                            got.setdefault((name, variant), []).append(value)
                            if name == "quire" and row in engines[name].parts:
                                got.setdefault((name, CEILING), []).append(engines[name].parts[row])
                after_round(found)
    return found


def measured(args, engine, folder, variant, precision, jobs):
    """{row: value} of one engine in one round; what fails is left out and said."""
    values = {}
    try:
        if jobs:
            speeds, peak = engine.measure(folder, variant, jobs)
            values.update({**speeds, "peak rss": peak})
        if precision == HTTP_PRECISION and any(is_wanted(row, args.rows) for row in HTTP_ROWS):
            values.update(engine.serve(folder, variant) or {})
    except (SystemExit, subprocess.CalledProcessError) as why:
        say(f"  left out: {why}")
    return values


def cell(values, usual):
    """usual: the number of rounds that goes without saying"""
    if not values:
        return "-"
    middle = statistics.median(values)
    spread = (max(values) - min(values)) / middle * 100 if middle else 0
    digits = 0 if middle >= 100 else 1
    around = f" ±{spread / 2:.0f} %" if len(values) > 1 else ""
    return f"{middle:.{digits}f}{around}" + (f" ({len(values)})" if len(values) != usual else "")


def table(found, engines, runs):
    """engines: columns, beside those of which there are rounds already; runs: for their ceilings"""
    engines = [e for e in VARIANTS if e in engines or any(key[0] == e for got in found.values() for key in got)]
    bars = {**{row[0]: row[5] for row in ROWS}, **HTTP_ROWS}
    lines = []
    for shape, precision in sorted({key[:2] for key in found}):
        columns = [(e, v) for e in engines for v in VARIANTS[e][precision]]
        heads = [f"{e} {v}".strip() for e, v in columns]
        lines += ["", f"## {shape}, {precision} (tok/s; peak rss in MB)", "", "| row | " + " | ".join(heads) + " | ratio | bar | of the ceiling | ratio there |",
                  "|---" * (len(columns) + 5) + "|"]
        for row in [r[0] for r in ROWS] + [*HTTP_ROWS, "peak rss"]:
            got = found.get((shape, precision, row))
            if not got:
                continue
            usual = max(len(v) for k, v in got.items() if k[1] != CEILING)
            ours = statistics.median(got[columns[0]]) if columns[0][0] == "quire" and columns[0] in got else None
            theirs = [statistics.median(v) for k, v in got.items() if k[0] != "quire"]
            best = (min if row in LESS_IS_BETTER else max)(theirs) if theirs else None
            ratio = ours / best if ours and best else None
            bar = bars.get(row, {}).get(precision, "")
            part = of_the_ceiling(shape, precision, row, ours, got.get(("quire", CEILING), []), runs) if ours and row in SPEEDS else None
            last = [f"{ratio:.2f}" if ratio else "-", str(bar), f"{part:.2f}" if part else "", f"{ratio / part:.2f}" if ratio and part else ""]
            lines.append(f"| {row} | " + " | ".join([cell(got.get(c), usual) for c in columns] + last) + " |")
    return lines


def describe(args, engines):
    """This run: what it is said to have been measured on and with."""
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")),
               platform.machine())
    versions = ", ".join(f"{n} {e.version()}" for n, e in engines.items() if n != "quire")
    return {"date": str(datetime.date.today()), "cpu_isa": args.cpu_isa, "machine": f"{cpu}, {args.threads} threads, Linux {platform.release().split('-')[0]}",
            "peers": versions or "no peer", "load_before": args.load, "ceilings": engines["quire"].ceilings if "quire" in engines else {}}


def run_line(run):
    busy = run["load_before"] > QUIET_LOAD
    quiet = f"**not quiet: other programs kept {run['load_before']:.1f} cores busy when it began; not to be committed**" if busy else "quiet"
    line = f"{run['date']}, {run['machine']}; machine {quiet} (load {run['load_before']:.2f} before, {run['load_after']:.2f} after); {run['peers']}."
    line += peers_isa.said(run.get("cpu_isa", "auto"))
    c = run["ceilings"]
    return line + (f" Ceilings: {c['read_gb_s']:.1f} GB/s read; fp32 {c['fp32_gop_s']:.0f}, bf16 {c['bf16_gop_s']:.0f}, int8 {c['int8_gop_s']:.0f} "
                   "GOP/s." if c else "")


def heading(runs, found):
    rounds = sorted({len(v) for key, got in found.items() for (_, variant), v in got.items() if variant != CEILING})
    counts = " to ".join(str(n) for n in ([rounds[0], rounds[-1]] if rounds[0] != rounds[-1] else rounds[:1]))
    several = f"medians of {counts} alternating rounds ± half the spread (their number in brackets where the engines' differ)"
    return ["# quire beside its peers", "",
            f"Random weights; {'one round' if counts == '1' else several}. "
            "Ratio: quire ÷ the best peer of the row. Of the ceiling: the least time that memory and arithmetic allow ÷ quire's. Decode: the "
            "longer of reading the weights and multiplying; a prompt: multiplying, attention in bf16; ceilings as measured before a run's first "
            "round (a share above 1: the bandwidth rose meanwhile). Ratio there: that of a program at the ceiling; none can reach a higher "
            "bar. Made by `python3 tests/bench/peers.py`.", "",
            *["- " + run_line(run) for run in runs]]


def listed(known):
    def parse(text):
        items = text.split(",")
        for item in items:
            if item not in known:
                raise argparse.ArgumentTypeError(f'"{item}" is none of {", ".join(known)}')
        return items
    return parse


def row_names(text):
    """Names hold commas, so parts are separated by semicolons."""
    return [part.strip() for part in text.split(";") if part.strip()]


def load(path):
    """What an earlier run left: (runs, found)"""
    kept = json.loads(path.read_text())
    found = {}
    for e in kept["found"]:
        found.setdefault((e["shape"], e["precision"], e["row"]), {})[(e["engine"], e["variant"])] = e["values"]
    return kept["runs"], found


def write(args, engines, runs, found):
    runs[-1]["load_after"] = os.getloadavg()[0]
    lines = heading(runs, found) + table(found, engines, runs)
    args.out.write_text("\n".join(lines) + "\n")
    if args.json:
        entries = [{"shape": s, "precision": p, "row": r, "engine": e, "variant": v, "values": values}
                   for (s, p, r), got in found.items() for (e, v), values in got.items()]
        args.json.write_text(json.dumps({"runs": runs, "found": entries}))
    return lines


def rounds_of(text):
    name, _, count = text.partition("=")
    if name not in VARIANTS or not count.isdigit():
        raise argparse.ArgumentTypeError(f'"{text}" is not ENGINE=ROUNDS with one of {", ".join(VARIANTS)}')
    return name, int(count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=listed(SHAPES), default=["qwen05", "llama1b"])
    parser.add_argument("--engines", type=listed(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--precisions", type=listed(VARIANTS["quire"]), default=["bf16", "int8", "int4"])
    parser.add_argument("--rows", type=row_names, action="extend", default=[],
                        help='only these rows: whole names, or parts of names, separated by ";"; may be repeated')
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rounds-of", type=rounds_of, action="append", default=[], metavar="ENGINE=ROUNDS", help="fewer rounds of one engine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/peers")
    parser.add_argument("--out", type=pathlib.Path, help="default: peers.md beside this script, on a busy machine in --work; peers-ISA.md with --cpu-isa ISA")
    parser.add_argument("--cpu-isa", choices=["auto", *peers_isa.ONEDNN], default="auto", help="no engine may use a newer instruction set")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--resume", action="store_true", help="add to the rounds that --json holds")
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--prepare-only", action="store_true", help="make environments and models, measure nothing")
    args = parser.parse_args()
    if args.resume and not args.json:
        parser.error("--resume needs --json, the file to go on from")
    args.rounds_of = dict(args.rounds_of)
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    args.load = os.getloadavg()[0]
    folder = args.work if args.load > QUIET_LOAD else HERE.parent
    args.out = args.out or folder / ("peers.md" if args.cpu_isa == "auto" else f"peers-{args.cpu_isa}.md")
    engines = {name: Quire(args) if name == "quire" else Peer(name, args) for name in args.engines}
    if not args.no_install:
        for name in set(engines) - {"quire"}:
            engines[name].check(args.work / "tiny")
    runs, found = load(args.json) if args.resume and args.json.exists() else ([], {})
    if any(run.get("cpu_isa", "auto") != args.cpu_isa for run in runs):
        parser.error(f"{args.json} holds rounds under another --cpu-isa; a table has one")
    runs.append(describe(args, engines))
    collect(args, engines, found, lambda so_far: write(args, engines, runs, so_far))
    if not args.prepare_only:
        print("\n".join(write(args, engines, runs, found)))


if __name__ == "__main__":
    main()
