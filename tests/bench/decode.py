# SPDX-License-Identifier: Apache-2.0
"""Decode speed of a Qwen2.5-0.5B shape with random weights, through the whole server, beside the memory bandwidth.

Prints tokens per second for 1 to 32 sequences at once, the bytes one decode step has to read (every weight of the
decoder and the head once), and that as a share of the bandwidth kcheck measures in the same run. Usage:
    QUIRE_BIN=build/release/bin python3 tests/bench/decode.py [--json] [--kcheck build/dev/tests/kcheck/kcheck]
"""
import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time

SHAPE = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
    "tie_word_embeddings": True, "rope_theta": 1000000.0, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 151934, "eos_token_id": 151933,
}
PROMPT, NEW, REPEAT = 16, 48, 5


def decode_bytes():
    """Bytes of weights that one decode step reads, bf16."""
    h, i, kv = SHAPE["hidden_size"], SHAPE["intermediate_size"], 2 * 64
    layer = h * (h + 2 * kv) + h * h + 3 * h * i
    return 2 * (SHAPE["num_hidden_layers"] * layer + SHAPE["vocab_size"] * h)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stream_times(port, seed):
    """Arrival times of the tokens of one streamed completion."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"model": "m", "prompt": [(seed * 7919 + k * 31) % 150000 for k in range(PROMPT)], "max_tokens": NEW,
            "temperature": 0, "ignore_eos": True, "stream": True}
    link.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    if answer.status != 200:
        raise SystemExit(f"decode.py: {answer.status} {answer.read().decode()}")
    times = []
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    return times


def tokens_per_second(port, n):
    """Tokens per second of n sequences between the last first token and the first last one, all decoding together."""
    results = [None] * n
    def work(k):
        results[k] = stream_times(port, k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    begin, end = max(r[0] for r in results), min(r[-1] for r in results)
    count = sum(sum(begin < t <= end for t in r) for r in results)
    return count / (end - begin)


def read_bandwidth(kcheck):
    """GB/s of one contiguous stream per thread, as `kcheck --bench` measures it."""
    out = subprocess.run([kcheck, "--bench", "--op", "cast_bf16", "--caps", "none"], capture_output=True, text=True)
    found = re.findall(r"^read,.*?([0-9.]+) GB/s", out.stdout, re.M)  # in small and in huge pages
    return max(map(float, found)) if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--kcheck", default="build/dev/tests/kcheck/kcheck", help="for the bandwidth")
    parser.add_argument("--sequences", default="1,2,8,32")
    args = parser.parse_args()
    bandwidth = read_bandwidth(args.kcheck) if os.path.exists(args.kcheck) else None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as f:
            json.dump(SHAPE, f)
        port = free_port()
        server = subprocess.Popen([os.path.join(os.environ.get("QUIRE_BIN", "build/release/bin"), "quire"), "serve",
                                   folder, "--load-format", "dummy", "--skip-tokenizer-init", "--port", str(port),
                                   "--served-model-name", "m", "--max-model-len", "2048", "--max-num-seqs", "64",
                                   "--log-level", "warning"])
        try:
            wait_ready(port, server)
            for n in map(int, args.sequences.split(",")):
                speeds = sorted(tokens_per_second(port, n) for _ in range(REPEAT))
                rate = statistics.median(speeds)
                rows.append({"sequences": n, "tokens_per_s": round(rate, 1), "min": round(speeds[0], 1),
                             "max": round(speeds[-1], 1), "read_gb_per_s": round(rate / n * decode_bytes() / 1e9, 1)})
        finally:
            server.terminate()
            server.wait()
    if args.json:
        print(json.dumps({"read_bandwidth_gb_per_s": bandwidth, "bytes_per_step": decode_bytes(), "rows": rows}))
        return
    print(f"decode, Qwen2.5-0.5B shape, bf16, {os.cpu_count()} cores; {decode_bytes() / 1e9:.3f} GB of weights a step; "
          f"read bandwidth {bandwidth or 'not measured (build dev for kcheck)'} GB/s")
    for r in rows:
        share = f"{r['read_gb_per_s'] / bandwidth:.2f} of read" if bandwidth else ""
        print(f"  {r['sequences']:3d} sequences: {r['tokens_per_s']:8.1f} tok/s (median of {REPEAT}; {r['min']}-{r['max']})"
              f"  {r['read_gb_per_s']:5.1f} GB/s {share}")


def wait_ready(port, server):
    for _ in range(1200):
        if server.poll() is not None:
            raise SystemExit(f"decode.py: the server stopped with {server.returncode}")
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            link.request("GET", "/ready")
            if link.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("decode.py: not ready after 120 s")


if __name__ == "__main__":
    main()
