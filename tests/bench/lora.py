# SPDX-License-Identifier: Apache-2.0
"""The cost of LoRA adapters: a step of decode of 8 sequences, each with an adapter of rank 16 of its own for every matrix of a
layer, ÷ the same step of an engine without adapters.

  python3 tests/bench/lora.py [--model Qwen2.5-0.5B] [--layers 0] [--quantization none] [--rounds 15] [--build build/dev]

Weights are dummies of a shape of tests/gpu/shapes.py; of one that does not fit in memory take fewer --layers (the vocabulary is cut
in proportion, so that the adapters' share of the bytes stays). One thread, its CPU time, both in turn in one process (bench_lora.c)."""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gpu"))
import shapes  # noqa: E402

RANK = 16
PREFIX = "base_model.model.model.layers"


def products(c):
    """{module: (inputs, outputs)} of a layer"""
    head = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    hidden, inter = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    return {"self_attn.q_proj": (hidden, q), "self_attn.k_proj": (hidden, kv), "self_attn.v_proj": (hidden, kv),
            "self_attn.o_proj": (q, hidden), "mlp.gate_proj": (hidden, inter), "mlp.up_proj": (hidden, inter),
            "mlp.down_proj": (inter, hidden)}


def shape(name, n_layer):
    """The config of a shape, with n_layer of its layers and as much of its vocabulary; 0: all of both."""
    c = shapes.config(name, n_layer=n_layer)
    whole = shapes.config(name)["num_hidden_layers"]
    return {**c, "vocab_size": c["vocab_size"] * c["num_hidden_layers"] // whole // 64 * 64}


def adapter(path, c):
    """A PEFT folder of small random numbers in bf16."""
    path.mkdir()
    modules = products(c)
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none",
        "target_modules": sorted(name.split(".")[1] for name in modules)}))
    header, parts, at, draw = {}, [], 0, random.Random(1)
    for layer in range(c["num_hidden_layers"]):
        for name, (n_in, n_out) in modules.items():
            for factor, shape in (("A", (RANK, n_in)), ("B", (n_out, RANK))):
                n = shape[0] * shape[1]
                some = struct.pack("<64H", *(0x3c00 + draw.randrange(256) + 0x8000 * draw.randrange(2) for _ in range(64)))
                parts.append((some * (n // 64 + 1))[:2 * n])
                header[f"{PREFIX}.{layer}.{name}.lora_{factor}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
                at += 2 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return path


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="Qwen2.5-0.5B", choices=[m for m in shapes.SHAPES if "MoE" not in str(shapes.SHAPES[m])])
    options.add_argument("--layers", type=int, default=0, help="of the shape; 0: all")
    options.add_argument("--quantization", default="none", choices=("none", "int8", "int4"))
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    options = options.parse_args()
    subprocess.run(["cmake", "--build", options.build, "--target", "bench_lora"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = shape(options.model, options.layers)
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        factors = adapter(folder / "adapter", config)
        program = options.build / "bin/bench_lora"
        subprocess.run([program, model, factors, options.quantization, str(options.rounds)], check=True)


if __name__ == "__main__":
    main()
