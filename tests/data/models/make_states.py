#!/usr/bin/env python3
"""Goldens of families whose layers keep a state beside K and V: a tiny folder with random weights, and what
transformers (5.23.0, torch 2.15.0) computes with it in float32.

    python3 tests/data/models/make_states.py [NAME …]      # writes tests/data/models/NAME

The same files for the same NAME and versions: numbers come from a hash of the name. Greedy tokens are accepted only
where the best two logits are well apart, else another attempt is made.
"""
import hashlib
import json
import math
import os
import random
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

HERE = Path(__file__).resolve().parent
LENGTHS = [1, 5, 17, 33, 120]
N_GREEDY, TOP, GAP, ATTEMPTS = 24, 20, 2e-3, 40
COMMON = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, torch_dtype="float32")
MODELS = {
    # the hub's spelling: numbers of the layers with attention, the MLP's width made of another number
    "lfm2": dict(COMMON, architectures=["Lfm2ForCausalLM"], model_type="lfm2", num_hidden_layers=5, norm_eps=1e-5,
                 conv_L_cache=3, conv_bias=False, full_attn_idxs=[2, 4], block_ff_dim=120, block_multiple_of=16,
                 block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, rope_theta=1000000.0),
    # biases, a wider convolution, a table for each end; kinds of layers by name
    "lfm2-bias": dict(COMMON, architectures=["Lfm2ForCausalLM"], model_type="lfm2", num_hidden_layers=4, norm_eps=1e-6,
                      conv_L_cache=4, conv_bias=True, layer_types=["conv", "full_attention", "conv", "conv"],
                      block_auto_adjust_ff_dim=False, tie_embedding=False, torch_dtype="bfloat16",
                      rope_parameters=dict(rope_theta=10000.0, rope_type="default")),
    # a delta net in three of four layers, experts in all but one; newer spellings
    "qwen3_next": dict(COMMON, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", num_hidden_layers=5,
                       head_dim=32, rms_norm_eps=1e-6, full_attention_interval=4, partial_rotary_factor=0.25,
                       rope_theta=100000.0, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=24,
                       linear_num_key_heads=2, linear_num_value_heads=4, num_experts=6, num_experts_per_tok=2,
                       moe_intermediate_size=32, shared_expert_intermediate_size=48, norm_topk_prob=True,
                       decoder_sparse_step=1, mlp_only_layers=[1], tie_word_embeddings=False, hidden_act="silu"),
}


def number_of(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def fill(model, tied, gen):
    """Weights large enough that logits are well apart; a tied table is small beside what layers add to the stream."""
    scale = 1.5 / math.sqrt(model.config.hidden_size)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=gen)
            if "norm" in name:
                centre = 1.0 if float(p.mean()) > 0.5 else 0.0
                if tied and (name.endswith("embedding_norm.weight") or name.endswith("final_layernorm.weight")):
                    centre += 1.0
                p.copy_(centre + 0.15 * r)
            elif name.endswith(("A_log", "dt_bias", ".D")):
                p.copy_(0.5 * r)
            elif "conv.weight" in name or "conv1d.weight" in name:
                p.copy_(0.6 * r)
            elif p.dim() == 1:
                p.copy_(0.15 * r)
            elif "embed_tokens" in name:
                p.copy_((0.15 if tied else 0.8) * r)
            elif "lm_head" in name:
                p.copy_(2.2 / math.sqrt(model.config.hidden_size) * r)
            elif name.endswith("gate.weight"):
                p.copy_(2.0 / math.sqrt(model.config.hidden_size) * r)
            else:
                p.copy_(scale * r)


def run(model, ids, **more):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False, **more)


def greedy(model, ids):
    ids, tokens, logprobs, gap = list(ids), [], [], math.inf
    for _ in range(N_GREEDY):
        row = run(model, ids).logits[0, -1].float()
        best, at = torch.topk(row, 2)
        gap = min(gap, float(best[0] - best[1]))
        tokens.append(int(at[0]))
        logprobs.append(float(torch.log_softmax(row.double(), -1)[at[0]]))
        ids.append(tokens[-1])
    return tokens, logprobs, gap


def references(model, prompts):
    arrays, records = {}, []
    for k, ids in enumerate(prompts):
        out = run(model, ids, output_hidden_states=len(ids) == 5)
        logits = out.logits[0].float()
        logprobs = torch.log_softmax(logits.double(), -1)
        value, at = torch.topk(logprobs, TOP, -1)
        arrays[f"p{k}.logits_last"] = logits[-1].clone()
        arrays[f"p{k}.top20_ids"] = at.to(torch.int32)
        arrays[f"p{k}.top20_logprobs"] = value.float()
        for layer, h in enumerate(out.hidden_states or []):
            arrays[f"p{k}.hidden.{layer}"] = h[0].float().clone()
        tokens, of_tokens, gap = greedy(model, ids)
        records.append(dict(len=len(ids), ids=ids, greedy=tokens, greedy_logprobs=of_tokens, greedy_min_gap=gap,
                            prompt_logprobs=[None] + [float(logprobs[t - 1, ids[t]]) for t in range(1, len(ids))]))
    return arrays, records


def make_one(name, attempt):
    config = MODELS[name]
    out = HERE / name
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    settings = transformers.AutoConfig.from_pretrained(out)
    settings._attn_implementation = "eager"
    settings.dtype = torch.float32
    kind = getattr(transformers, config["architectures"][0])
    model = kind(settings).float().eval()
    fill(model, settings.tie_word_embeddings, torch.Generator().manual_seed(number_of(f"{name} weights {attempt}")))
    model.tie_weights()
    dtype = getattr(torch, config["torch_dtype"])
    model.to(dtype).save_pretrained(out)
    (out / "config.json").rename(out / "config_v5.json")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = kind.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    draw = random.Random(number_of(f"{name} prompts"))
    prompts = [[draw.randrange(3, config["vocab_size"]) for _ in range(n)] for n in LENGTHS]
    arrays, records = references(model, prompts)
    gap = min(r["greedy_min_gap"] for r in records)
    if gap < GAP or min(len(set(r["greedy"])) for r in records) < 5:
        return False
    save_file({k: v.contiguous() for k, v in arrays.items()}, out / "golden.safetensors")
    about = dict(name=name, kind="causal", arch=config["architectures"][0], attempt=attempt, min_gap=gap,
                 storage_dtype=config["torch_dtype"], versions=dict(transformers=transformers.__version__, torch=torch.__version__),
                 prompts=records)
    (out / "golden.json").write_text(json.dumps(about, separators=(",", ":")) + "\n")
    return True


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        for attempt in range(ATTEMPTS):
            if make_one(name, attempt):
                print(name, "attempt", attempt)
                break
        else:
            sys.exit(f"{name}: no attempt was accepted")


if __name__ == "__main__":
    main()
