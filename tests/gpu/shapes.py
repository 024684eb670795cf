# SPDX-License-Identifier: Apache-2.0
"""Models by shape alone, for the benchmark: config.json files, and a checkpoint of random weights where loading is measured."""
import json
import os
import shutil

_COMMON = {"hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
SHAPES = {
    "Llama-3-8B": {**_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
                   "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                   "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "Qwen2.5-0.5B": {**_COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
                     "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                     "tie_word_embeddings": True},
    "Qwen3-30B-A3B": {**_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
                      "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0},
    "Gemma-2-2B": {**_COMMON, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304,
                   "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                   "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 256000,
                   "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                   "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True},
    "Pythia-1.4B": {**_COMMON, "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu",
                    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 16,
                    "rotary_pct": 0.25, "rotary_emb_base": 10000, "use_parallel_residual": True, "vocab_size": 50304,
                    "max_position_embeddings": 2048, "layer_norm_eps": 1e-5},
    "Phi-3-mini": {**_COMMON, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
                   "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                   "vocab_size": 32064, "sliding_window": 2047, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0},
}
# Toy shapes: heads of 64, the least that the card's fast kernels serve.
SMALL = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 64, "vocab_size": 512, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
# Start-up computes the largest step and fills the card's memory: too much for an emulation.
SMALL_STEPS = ("--max-num-batched-tokens", "32", "--num-gpu-blocks-override", "256")
PIECE = 32 << 20


def config(name, small=False, n_layer=0):
    """small: the same family, so small that the script can be tried on anything. n_layer: fewer layers than it has."""
    shape = SHAPES[name]
    if small:
        return {**shape, **{k: v for k, v in SMALL.items() if k in shape}}
    return {**shape, "num_hidden_layers": n_layer or shape["num_hidden_layers"]}


def folder(parent, name, small=False, n_layer=0):
    """A folder with nothing but config.json, for --load-format dummy."""
    path = parent / (f"{name}-{n_layer}-layers" if n_layer else name)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config(name, small, n_layer)))
    return path


def llama_tensors(c):
    """(name, shape) of every tensor of a Llama checkpoint."""
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"]
    kv = c["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [c["vocab_size"], hidden]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [hidden]
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            yield f"{layer}self_attn.{name}_proj.weight", [rows, hidden]
        yield layer + "self_attn.o_proj.weight", [hidden, hidden]
        yield layer + "post_attention_layernorm.weight", [hidden]
        for name in ("gate", "up"):
            yield f"{layer}mlp.{name}_proj.weight", [inner, hidden]
        yield layer + "mlp.down_proj.weight", [hidden, inner]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [c["vocab_size"], hidden]


def room_for(places, n):
    """The first of `places` that has n bytes free; None: none has."""
    for place in places:
        if place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > n:
            return place
    return None


def checkpoint_bytes(c):
    total = 0
    for _, shape in llama_tensors(c):
        n = 2
        for d in shape:
            n *= d
        total += n
    return total


def checkpoint(path, c):
    """config.json and model.safetensors of random bf16 (±0.008 to ±0.03), written once, so it is in the page cache."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(c))
    header, at = {}, 0
    for name, shape in llama_tensors(c):
        n = 2
        for d in shape:
            n *= d
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = bytearray(PIECE)
    piece[0::2] = os.urandom(PIECE // 2)
    piece[1::2] = os.urandom(PIECE // 2).translate(bytes(b & 0x80 | 0x3c for b in range(256)))
    with open(path / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        while at > 0:
            at -= out.write(memoryview(piece)[:min(at, PIECE)])
    return path
