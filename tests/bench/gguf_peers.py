# SPDX-License-Identifier: Apache-2.0
"""Decode and prefill of one GGUF file by quire and by llama.cpp, and of quire's int4 in the same shape.

    python3 tests/bench/gguf_peers.py [--kinds Q4_K,Q6_K,Q8_0] [--layers 4] [--rounds 5] [--threads 2] [--work build/gguf] [--python PYTHON]

Random blocks in the shape of Llama 3.2 1B (fewer layers, 32,000 tokens). The engines alternate, each in a fresh process. numpy, gguf,
safetensors and xllamacpp (llama.cpp as a wheel) are installed from PyPI into a virtual environment in --work on first use; --python
names one that has them. Prints a table in Markdown; the part of the ceiling is the bytes that a token reads ÷ the machine's read
bandwidth, of `quire bench roofline` once a row."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
PACKAGES = ["numpy", "gguf", "safetensors", "xllamacpp"]
ROWS = [("decode, 1 sequence", "decode", 16, 48), ("prefill 256", "prefill", 256, 1)]
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
         "tie_word_embeddings": False, "max_position_embeddings": 4096, "hidden_size": 2048, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 32000, "rope_theta": 500000.0,
         "rms_norm_eps": 1e-5}


def make(path, kind, layers):
    """In the environment with numpy and gguf."""
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import gguf
    import gguf_blocks
    import numpy as np
    c, h, inner, kv = SHAPE, SHAPE["hidden_size"], SHAPE["intermediate_size"], 512
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_context_length(4096)
    w.add_embedding_length(h)
    w.add_block_count(layers)
    w.add_feed_forward_length(inner)
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_rope_dimension_count(64)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>", *(f"▁t{i}" for i in range(3, c["vocab_size"]))])
    w.add_token_scores([0.0] * c["vocab_size"])
    w.add_token_types([2, 3, 3] + [1] * (c["vocab_size"] - 3))
    numbers = gguf_blocks.Numbers(1)

    def matrix(name, *shape):
        raw, of = gguf_blocks.blocks(numbers, shape, kind)
        w.add_tensor(name, raw, raw_dtype=of)

    matrix("token_embd.weight", c["vocab_size"], h)
    matrix("output.weight", c["vocab_size"], h)
    w.add_tensor("output_norm.weight", np.ones(h, np.float32))
    for i in range(layers):
        p = f"blk.{i}."
        for name, rows, cols in (("attn_q", h, h), ("attn_k", kv, h), ("attn_v", kv, h), ("attn_output", h, h), ("ffn_gate", inner, h),
                                 ("ffn_up", inner, h), ("ffn_down", h, inner)):
            matrix(f"{p}{name}.weight", rows, cols)
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"{p}{name}.weight", np.ones(h, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_child(model, threads, n_in, n_out):
    """In the environment with xllamacpp: tokens per second of prefill and decode."""
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.n_ctx, p.n_parallel, p.cpuparams.n_threads = 1024, 1, threads
    p.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(p)
    for _ in range(2):  # the first one touches the weights
        body = {"prompt": list(range(5, 5 + n_in)), "n_predict": n_out, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        out = server.handle_completions(body)
    out = out if isinstance(out, dict) else json.loads(out)
    t = out["timings"]
    print("SPEEDS", json.dumps({"prefill": t["prompt_per_second"], "decode": t["predicted_per_second"]}), flush=True)
    os._exit(0)


def quire(model, threads, row, *options):
    """tok/s, bytes of a step."""
    name, kind, n_in, n_out = row
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([BIN / "quire-bench", "latency", model, *options, "--input-len", str(n_in), "--output-len", str(n_out), "--batch-size",
                        "1", "--threads", str(threads), "--repeats", "1", "--no-roofline", "--no-progress", "--json", out.name],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.load(open(out.name, encoding="utf-8"))["results"][0]
    return result[f"{kind}_tok_s"], result["step_bytes"]


def llama(python, model, threads, row):
    name, kind, n_in, n_out = row
    done = subprocess.run([python, HERE, "--llama", str(model), str(threads), str(n_in), str(n_out)], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SPEEDS")]
    return json.loads(lines[0].removeprefix("SPEEDS"))[kind]


def read_gb_s(threads):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([BIN / "quire-bench", "roofline", "--threads", str(threads), "--no-progress", "--json", out.name], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(out.name, encoding="utf-8"))["machine"]["read_gb_s"]


def show(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--make":
        return make(pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    if len(sys.argv) > 1 and sys.argv[1] == "--llama":
        return llama_child(sys.argv[2], *map(int, sys.argv[3:]))
    p = argparse.ArgumentParser()
    p.add_argument("--kinds", default="Q4_K,Q6_K,Q8_0")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--work", type=pathlib.Path, default=ROOT / "build/gguf")
    p.add_argument("--python")
    args = p.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.python:
        args.python = str(args.work / "venv/bin/python")
        if not pathlib.Path(args.python).exists():
            subprocess.run([sys.executable, "-m", "venv", args.work / "venv"], check=True)
            subprocess.run([args.python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    folder = args.work / "int4"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": args.layers}))
    print("| type | row | quire | llama.cpp | ratio | quire's part of the ceiling | int4: tok/s | its part |\n|---|---|---|---|---|---|---|---|")
    for kind in args.kinds.split(","):
        path = args.work / f"{kind}-{args.layers}.gguf"
        if not path.exists():
            subprocess.run([args.python, HERE, "--make", path, kind, str(args.layers)], check=True)
        for row in ROWS:
            ours, theirs, parts, ints, int_parts = [], [], [], [], []
            ceiling = read_gb_s(args.threads) * 1e9
            for _ in range(args.rounds):
                speed, step = quire(path, args.threads, row)
                int_speed, int_step = quire(folder, args.threads, row, "--load-format", "dummy", "--quantization", "int4")
                theirs.append(llama(args.python, path, args.threads, row))
                ours.append(speed)
                ints.append(int_speed)
                parts.append(step * speed / ceiling)
                int_parts.append(int_step * int_speed / ceiling)
            ratio = [a / b for a, b in zip(ours, theirs)]
            of = (show(parts, 2), show(int_parts, 2)) if row[1] == "decode" else ("", "")
            print(f"| {kind} | {row[0]} | {show(ours)} | {show(theirs)} | {show(ratio, 2)} | {of[0]} | {show(ints)} | {of[1]} |", flush=True)
    return None


if __name__ == "__main__":
    main()
