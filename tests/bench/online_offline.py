# SPDX-License-Identifier: Apache-2.0
"""Online and offline throughput on the same load, in the same run: they should differ by less than 5 %.

A load of random token-id prompts of mixed lengths on a small model with random weights, greedy, without end-of-text. Each
round gives it to `quire serve` (as many connections as run-batch has lines open, one answer each, no streams), to
`quire run-batch` and to `quire generate`, in that order and then in the opposite one. A time runs from when the engine
takes requests to the last answer; what is printed is the median of the rounds. The tokens must be the same everywhere.
The HTTP client is this program, on the same cores: its own CPU time is printed beside. So is the CPU time of all processes
of a way, loading included: on a machine that does other work too it says more than the clock. A round is three starts of an
engine and some 10,000 tokens, so on a busy machine rounds take long: each time goes to stderr as it is known, no round begins
that would not end within --seconds (but for the first), and a way that takes longer than all of that is given up. Usage:
    QUIRE_BIN=build/release/bin python3 tests/bench/online_offline.py [--requests 64] [--rounds 6] [--seconds 240] [--json]
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from servers import BIN, Server  # noqa: E402

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8192, "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
SEQS = 64
LIMIT_S = 240  # of one way in one round; --seconds
OPTIONS = ["--load-format", "dummy", "--skip-tokenizer-init", "--max-num-seqs", str(SEQS)]


def load(n):
    draw = random.Random(1)
    return [{"prompt": [draw.randrange(3, 8192) for _ in range(draw.randrange(4, 96))], "max_tokens": draw.randrange(16, 96),
             "temperature": 0, "ignore_eos": True} for _ in range(n)]


def online(model, requests, folder):
    server = Server(model, *OPTIONS)
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2 * SEQS) as pool:
        answers = list(pool.map(lambda body: server.post("/v1/completions", body, timeout=LIMIT_S), requests))
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    server.stop()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [a["choices"][0]["token_ids"] for _, a in answers], seconds, cpu


def batch(model, requests, folder):
    source, result = folder / "in.jsonl", folder / "out.jsonl"
    result.unlink(missing_ok=True)
    source.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": r}) + "\n"
                              for i, r in enumerate(requests)))
    run = subprocess.run([BIN / "quire-run-batch", model, "-i", source, "-o", result, "--json", *OPTIONS], capture_output=True,
                         text=True, check=True, timeout=LIMIT_S)
    by_id = {r["custom_id"]: r["response"]["body"] for r in map(json.loads, result.read_text().splitlines())}
    return [by_id[str(i)]["choices"][0]["token_ids"] for i in range(len(requests))], \
        json.loads(run.stdout)["busy_seconds"], 0


def generate(model, requests, folder):
    source = folder / "generate.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in requests))
    run = subprocess.run([BIN / "quire-generate", model, "-i", source, "--log-level", "info", *OPTIONS], capture_output=True,
                         text=True, check=True, timeout=LIMIT_S)
    seconds = float(run.stderr.rsplit("answers in ", 1)[1].split()[0])
    return [json.loads(line)["token_ids"] for line in run.stdout.splitlines()], seconds, 0


def main():
    global LIMIT_S
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=LIMIT_S)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    LIMIT_S = args.seconds
    begin, round_s = time.monotonic(), 0
    ways = {"serve": online, "run-batch": batch, "generate": generate}
    seconds = {name: [] for name in ways}
    client_cpu = []
    cpu_of = {name: [] for name in ways}
    requests = load(args.requests)
    n_token = sum(r["max_tokens"] for r in requests)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(SHAPE))
        reference = None
        for i in range(args.rounds):
            round_begin = time.monotonic()
            if i and round_begin - begin + round_s > args.seconds:
                print(f"online_offline: no time for round {i + 1} of {args.rounds}", file=sys.stderr)
                break
            for way in list(ways)[::1 if i % 2 == 0 else -1]:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                try:
                    tokens, took, cpu = ways[way](folder, requests, folder)
                except (subprocess.TimeoutExpired, TimeoutError):
                    raise SystemExit(f"online_offline: {way} did not end within {LIMIT_S:.0f} s") from None
                print(f"online_offline: round {i + 1}, {way}: {took:.1f} s", file=sys.stderr, flush=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu_of[way].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                reference = reference or tokens
                if tokens != reference:
                    raise SystemExit(f"online_offline: {way} gave other tokens")
                seconds[way].append(took)
                if way == "serve":
                    client_cpu.append(cpu)
            round_s = time.monotonic() - round_begin
    speed = {way: n_token / statistics.median(took) for way, took in seconds.items()}
    differ = {way: (speed[way] / speed["serve"] - 1) * 100 for way in ways}
    if args.json:
        print(json.dumps({"requests": args.requests, "tokens": n_token, "tokens_per_second": speed, "percent_beside_serve": differ,
                          "seconds": seconds, "rounds": len(client_cpu), "cpu_seconds": cpu_of, "client_cpu_seconds": statistics.median(client_cpu)}))
        return
    print(f"online_offline: {args.requests} requests, {n_token} tokens, {len(client_cpu)} rounds, the same tokens everywhere")
    for way in ways:
        spread = (max(seconds[way]) - min(seconds[way])) / statistics.median(seconds[way]) * 100
        print(f"  {way:10} {speed[way]:8.0f} tokens/s  {differ[way]:+6.1f} % beside serve  (rounds spread over {spread:.0f} %), "
              f"{statistics.median(cpu_of[way]):.1f} s of CPU")
    print(f"  the HTTP client took {statistics.median(client_cpu):.2f} s of CPU; wanted: less than 5 % between them")


if __name__ == "__main__":
    main()
