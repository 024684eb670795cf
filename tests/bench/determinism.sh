#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the same bits in any batch cost: the engine as it is beside one whose attention may sum in any order. Aim: at most
# 5 % of throughput. The first shape is that of Qwen2.5-0.5B (2 KV heads), then 3 KV heads and a single one, for which a
# few threads find it harder to share a step; three layers of each, random weights.
set -eu
cd "$(dirname "$0")/../.."
cmake --build --preset release --target bench_determinism >/dev/null
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
shape() { # shape HIDDEN INTER HEADS KV_HEADS
    cat >"$dir/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $1, "intermediate_size": $2,
 "num_attention_heads": $3, "num_key_value_heads": $4, "num_hidden_layers": 3, "head_dim": 64, "vocab_size": 8000,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
 "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": true}
JSON
    echo "determinism: hidden $1, $3 heads, $4 of keys and values"
    "${QUIRE_BIN:-build/release/bin}/bench_determinism" "$dir"
}
shape 896 4864 14 2
shape 576 1536 9 3
shape 512 2048 8 1
