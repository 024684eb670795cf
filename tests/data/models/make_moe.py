#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of families with experts: NAME/ is a tiny model with random weights, saved by transformers as an ordinary folder (config.json
in the spelling of the hub's, config_v5.json in that of transformers 5), and golden.json and golden.safetensors what transformers
computes with it in float32. test_model_golden.c compares. Needs torch, transformers and safetensors; the weights are drawn from the
seed and NAME, so an answer is the same for the same versions of these:

    python3 tests/data/models/make_moe.py [NAME …]

../redraw.py then lists the weights in weights.txt and computes the golden anew for those that it draws (../README.md).

A draw is rejected where two tokens are closer than rounding allows, and where a router is near a tie: there weights that differ by
1e-6 of themselves give other experts, which shows in the logits."""
import copy
import hashlib
import json
import os
import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
SEED = 1903
PROMPTS = [1, 5, 17, 33, 120]
N_GREEDY, TOP, MIN_GAP, DRAWS = 24, 20, 1e-3, 60


def base(architecture, model_type, **changes):
    config = dict(architectures=[architecture], model_type=model_type, vocab_size=256, hidden_size=32, intermediate_size=48,
                  num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", max_position_embeddings=256,
                  rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, attention_dropout=0.0, tie_word_embeddings=False,
                  pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.02, use_cache=True, torch_dtype="float32",
                  transformers_version="4.57.0")
    config.update(changes)
    return {k: v for k, v in config.items() if v is not ...}


DEEPSEEK = dict(moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
                n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True)
LATENT = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, num_key_value_heads=4)
# Keys that families with other names for them do not have.
OF_LLAMA = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_act",
            "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "attention_dropout")

MODELS = {
    "afmoe": base("AfmoeForCausalLM", "afmoe", num_hidden_layers=4, head_dim=16, num_dense_layers=1, moe_intermediate_size=16, num_experts=8,
                  num_experts_per_tok=3, num_shared_experts=2, route_scale=1.5, route_norm=True, score_func="sigmoid", mup_enabled=True,
                  global_attn_every_n_layers=2, sliding_window=16, vocab_size=128, intermediate_size=24),
    # beside attention, by softmax of the best scores, averaged with shared experts; a dense layer with a rope and no window
    "cohere2_moe": base("Cohere2MoeForCausalLM", "cohere2_moe", num_hidden_layers=4, head_dim=12, num_experts=6, num_experts_per_tok=2,
                        num_shared_experts=2, intermediate_size=16, prefix_dense_intermediate_size=40, first_k_dense_replace=1,
                        prefix_dense_sliding_window_pattern=1, sliding_window=16, sliding_window_pattern=2, layer_norm_eps=1e-5,
                        logit_scale=0.5, rms_norm_eps=..., attention_bias=True, tie_word_embeddings=True, vocab_size=128),
    # by sigmoids, added to a shared expert, RMS norms
    "cohere2_moe-sigmoid": base("Cohere2MoeForCausalLM", "cohere2_moe", num_hidden_layers=3, head_dim=8, num_experts=6, num_experts_per_tok=3,
                                num_shared_experts=1, shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid",
                                norm_topk_prob=False, intermediate_size=24, sliding_window=16, rms_norm_eps=1e-6, vocab_size=128,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                mlp_layer_types=["dense", "sparse", "sparse"], prefix_dense_sliding_window_pattern=2,
                                prefix_dense_intermediate_size=40, logit_scale=0.25, torch_dtype="bfloat16"),
    "dbrx": {k: v for k, v in base("DbrxForCausalLM", "dbrx", d_model=32, n_heads=4, n_layers=2, max_seq_len=256, vocab_size=128, attn_config=dict(
        clip_qkv=1.5, kv_n_heads=2, rope_theta=500000.0), ffn_config=dict(ffn_hidden_size=24, moe_num_experts=6, moe_top_k=3)).items()
        if k not in OF_LLAMA},
    "dots1": base("Dots1ForCausalLM", "dots1", head_dim=16, num_hidden_layers=3, sliding_window=16, max_window_layers=2,
                  rms_norm_eps=1e-6, attention_bias=False, **DEEPSEEK | dict(n_group=4, topk_group=2, n_shared_experts=2)),
    "ernie4_5_moe": base("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", num_hidden_layers=4, use_bias=False, moe_num_experts=8, moe_k=3,
                         moe_intermediate_size=16, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2,
                         moe_layer_interval=1, moe_norm_min=1e-12, moe_gate="topk", moe_use_aux_free=True, rope_theta=500000.0,
                         num_nextn_predict_layers=0, tie_word_embeddings=True),
    "exaone_moe": base("ExaoneMoeForCausalLM", "exaone_moe", num_hidden_layers=3, head_dim=16, moe_intermediate_size=16, num_experts=8,
                       num_experts_per_tok=3, num_shared_experts=1, routed_scaling_factor=2.5, n_group=2, topk_group=1, norm_topk_prob=True,
                       first_k_dense_replace=1, sliding_window=16, sliding_window_pattern="LLG", vocab_size=128, intermediate_size=24,
                       layer_types=["sliding_attention", "sliding_attention", "full_attention"], rope_theta=1000000.0),
    "flex_olmo": base("FlexOlmoForCausalLM", "flex_olmo", num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
                      intermediate_size=24, rope_theta=500000.0, attention_bias=False, rms_norm_eps=1e-6),
    "glm4_moe": base("Glm4MoeForCausalLM", "glm4_moe", head_dim=16, partial_rotary_factor=0.5, attention_bias=True, use_qk_norm=True,
                     num_nextn_predict_layers=0, num_hidden_layers=3, **DEEPSEEK),
    "glm4_moe_lite": base("Glm4MoeLiteForCausalLM", "glm4_moe_lite", head_dim=..., attention_bias=False, num_nextn_predict_layers=0,
                          topk_method="noaux_tc", partial_rotary_factor=1.0, **DEEPSEEK | LATENT),
    "granitemoe_swa": base("GraniteMoeSWAForCausalLM", "granitemoe_swa", num_local_experts=6, num_experts_per_tok=2, intermediate_size=16,
                           num_hidden_layers=3, embedding_multiplier=2.0, attention_multiplier=0.11, residual_multiplier=0.8,
                           logits_scaling=1.5, attention_bias=True, sliding_window=12, vocab_size=128, shared_intermediate_size=24,
                           layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "granitemoeshared": base("GraniteMoeSharedForCausalLM", "granitemoeshared", num_local_experts=6, num_experts_per_tok=2,
                             intermediate_size=24, shared_intermediate_size=40, embedding_multiplier=2.0, attention_multiplier=0.11,
                             residual_multiplier=0.8, logits_scaling=1.5, attention_bias=False, tie_word_embeddings=True,
                             rms_norm_eps=1e-6),
    "hunyuan_v1_moe": base("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", head_dim=16, num_experts=6, moe_topk=[2, 2],
                           num_shared_expert=[1, 1], moe_intermediate_size=[24, 24], intermediate_size=24, use_qk_norm=True,
                           use_cla=False, use_mixed_mlp_moe=True, attention_bias=False, tie_word_embeddings=True,
                           rope_scaling=dict(type="dynamic", alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0,
                                             mscale_all_dim=0.0)),
    "hy_v3": base("HYV3ForCausalLM", "hy_v3", head_dim=16, num_experts=8, num_experts_per_tok=3, num_shared_experts=1,
                  moe_intermediate_size=16, router_scaling_factor=2.0, first_k_dense_replace=1, qk_norm=True, vocab_size=128,
                  intermediate_size=24),
    "kimi_k2": base("DeepseekV3ForCausalLM", "kimi_k2", num_hidden_layers=2, attention_bias=False, topk_method="noaux_tc",
                    scoring_func="sigmoid", moe_layer_freq=1, num_nextn_predict_layers=0, rope_theta=50000.0, rms_norm_eps=1e-6,
                    rope_scaling=dict(type="yarn", factor=32.0, original_max_position_embeddings=64, beta_fast=1.0, beta_slow=1.0,
                                      mscale=1.0, mscale_all_dim=1.0), **DEEPSEEK | LATENT | dict(routed_scaling_factor=2.827)),
    "llama4": base("Llama4ForCausalLM", "llama4_text", num_hidden_layers=4, head_dim=16, intermediate_size=24, intermediate_size_mlp=40,
                   num_local_experts=6, num_experts_per_tok=2, interleave_moe_layer_step=2, no_rope_layers=[], attention_chunk_size=24,
                   use_qk_norm=True, attn_temperature_tuning=True, floor_scale=16, attn_scale=0.1, attention_bias=False,
                   output_router_logits=False, rope_scaling=dict(rope_type="llama3", factor=8.0, high_freq_factor=1.0,
                                                                 low_freq_factor=1.0, original_max_position_embeddings=32)),
    "mellum": base("MellumForCausalLM", "mellum", num_hidden_layers=3, head_dim=16, moe_intermediate_size=16, num_experts=8,
                   num_experts_per_tok=3, norm_topk_prob=True, attention_bias=False, sliding_window=16, vocab_size=128, intermediate_size=24,
                   mlp_layer_types=["dense", "sparse", "sparse"], rope_theta=..., rope_scaling=...,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention"], rope_parameters=dict(
                       full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=64,
                                           beta_fast=8.0, beta_slow=1.0),
                       sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
    # windows with sinks and twice the KV heads, narrower heads of V; the hub's spelling
    "mimo_v2_flash": base("MiMoV2FlashForCausalLM", "mimo_v2_flash", num_hidden_layers=3, head_dim=12, v_head_dim=8, num_key_value_heads=1,
                          swa_num_key_value_heads=2, swa_num_attention_heads=4, swa_head_dim=12, swa_v_head_dim=8, vocab_size=128,
                          n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_group=1, topk_group=1,
                          scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=None,
                          n_shared_experts=None, partial_rotary_factor=0.334, rope_theta=5000000.0, swa_rope_theta=10000.0,
                          rms_norm_eps=..., rope_scaling=..., layernorm_epsilon=1e-5, sliding_window=15, sliding_window_size=15,
                          hybrid_layer_pattern=[0, 1, 1], moe_layer_freq=[0, 1, 1], add_full_attention_sink_bias=False,
                          add_swa_attention_sink_bias=True, attention_value_scale=0.707, attention_bias=False),
    "minimax_m2": base("MiniMaxM2ForCausalLM", "minimax_m2", head_dim=16, rotary_dim=8, num_local_experts=8, num_experts_per_tok=3,
                       intermediate_size=24, use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid",
                       shared_intermediate_size=0, use_mtp=False, rope_theta=5000000, rms_norm_eps=1e-6),
    "mistral4": base("Mistral4ForCausalLM", "mistral4", num_hidden_layers=3, vocab_size=128, attention_bias=False, rope_interleave=True,
                     head_dim=..., rope_theta=..., rope_scaling=..., rope_parameters=dict(
                         rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=24, beta_fast=8.0,
                         beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, partial_rotary_factor=8 / 24,
                         max_position_embeddings=256), **DEEPSEEK | LATENT),
    "phimoe": base("PhimoeForCausalLM", "phimoe", num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, attention_bias=True,
                   lm_head_bias=True, router_jitter_noise=0.2, input_jitter_noise=0.0, sliding_window=40),
    "solar_open": base("SolarOpenForCausalLM", "solar_open", head_dim=16, attention_bias=True, vocab_size=128, intermediate_size=...,
                       **DEEPSEEK | dict(first_k_dense_replace=0, moe_intermediate_size=16)),
}
# Of these the folder's config.json nests the text model's, as that of a model that also reads images does, and names have a prefix.
NESTED = {"llama4": ("Llama4ForConditionalGeneration", "llama4")}
# What transformers 5 reads in another place: its DBRX leaves attn_config's rope_theta, which version 4 used, unread.
V5 = {"dbrx": dict(rope_parameters=dict(rope_type="default", rope_theta=500000.0))}
AS = {"kimi_k2": "deepseek_v3"}  # the class that transformers has of a model type


def number(text):
    return int.from_bytes(hashlib.sha256(f"{SEED}:{text}".encode()).digest()[:7], "big")


def draw_weights(model, generator):
    """Large enough that logits are well apart and routing is uneven."""
    import torch
    hidden = model.config.hidden_size
    tied = model.config.tie_word_embeddings
    tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction_bias" in n]
    with torch.no_grad():
        for name, p in tensors:
            r = torch.randn(p.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                last = tied and name == "model.norm.weight"
                p.copy_((2.0 if last else 1.0) + 0.15 * r)
            elif "correction_bias" in name:
                p.copy_(0.2 * r)
            elif name.endswith("bias"):
                p.copy_(0.15 * r)
            elif "lm_head" in name or "gate.weight" in name or "router" in name or "gate.wg" in name:
                p.copy_((2.2 if "lm_head" in name else 2.0) / hidden**0.5 * r)
            elif "embed_tokens" in name:
                p.copy_((0.3 if tied else 0.8) * r)
            else:
                p.copy_(1.5 / max(hidden, 48) ** 0.5 * r)
    model.tie_weights()


def class_of(config):
    import transformers
    return getattr(transformers, config["architectures"][0])


def loaded(folder, config, dtype):
    """As transformers reads what it has saved."""
    model = class_of(config).from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model.set_experts_implementation("eager")
    return model.eval()


def draw(name, config, folder, attempt, dtype):
    """A model of the config with random weights in the folder, and what transformers reads of it."""
    import torch
    import transformers
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plain = config | dict(model_type=AS.get(config["model_type"], config["model_type"])) | V5.get(name, {})
    (folder / "config.json").write_text(json.dumps(plain))
    read = transformers.AutoConfig.from_pretrained(folder)
    read.dtype = torch.float32
    read._attn_implementation = "eager"
    model = class_of(config)(read).float().eval()
    draw_weights(model, torch.Generator().manual_seed(number(f"{name}/{attempt}") % 2**63))
    model.to(dtype).save_pretrained(folder)
    return loaded(folder, config, torch.float32)


def logits_of(model, ids, **options):
    import torch
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False, **options)


def greedy(model, ids):
    import torch
    known, gap, logprobs = list(ids), float("inf"), []
    for _ in range(N_GREEDY):
        row = logits_of(model, known).logits[0, -1].float()
        best, at = torch.topk(row, 2)
        gap = min(gap, float(best[0] - best[1]))
        logprobs.append(float(torch.log_softmax(row.double(), -1)[at[0]]))
        known.append(int(at[0]))
    return known[len(ids):], logprobs, gap


def answers(model, prompts):
    import torch
    tensors, records = {}, []
    for k, ids in enumerate(prompts):
        out = logits_of(model, ids, output_hidden_states=len(ids) == 5)
        logits = out.logits[0].float()
        logprobs = torch.log_softmax(logits.double(), -1)
        best, at = torch.topk(logprobs, TOP, dim=-1)
        tensors[f"p{k}.logits_last"] = logits[-1].clone()
        tensors[f"p{k}.top20_ids"] = at.to(torch.int32)
        tensors[f"p{k}.top20_logprobs"] = best.float()
        for i, h in enumerate(out.hidden_states or ()):
            tensors[f"p{k}.hidden.{i}"] = h[0].float().clone()
        tokens, of_tokens, gap = greedy(model, ids)
        known = [None] + [float(logprobs[i - 1, ids[i]]) for i in range(1, len(ids))]
        records.append(dict(len=len(ids), ids=ids, prompt_logprobs=known, greedy=tokens, greedy_logprobs=of_tokens, greedy_min_gap=gap))
    return tensors, records


def shift(model, changed, prompts):
    """The largest difference of a last logit."""
    return max(float((logits_of(model, p).logits[0, -1].double() - logits_of(changed, p).logits[0, -1].double()).abs().max())
               for p in prompts)


def why_not(model, prompts, records, notes):
    """Why a draw is no golden; None: it is one."""
    import torch
    gap = min(r["greedy_min_gap"] for r in records)
    notes["min_gap"] = gap
    if gap < MIN_GAP:
        return f"a gap of {gap:.1e}"
    exact = copy.deepcopy(model).double()
    notes["fp64_max_abs"] = shift(model, exact, prompts)
    if notes["fp64_max_abs"] > gap / 10:
        return f"rounding of {notes['fp64_max_abs']:.1e} beside a gap of {gap:.1e}"
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=generator))
    notes["weights_1e-6_perturbed_max_abs"] = shift(model, moved, prompts)
    if notes["weights_1e-6_perturbed_max_abs"] > 2e-3:
        return f"routing near a tie ({notes['weights_1e-6_perturbed_max_abs']:.1e})"
    return None


def hub_spelling(name, config, folder, dtype):
    """config.json as a published checkpoint has it, and names of tensors where a model is nested."""
    from safetensors.torch import load_file, save_file
    os.replace(folder / "config.json", folder / "config_v5.json")
    config = config | dict(torch_dtype=str(dtype).removeprefix("torch."))
    if name in NESTED:
        architecture, model_type = NESTED[name]
        nested = {k: v for k, v in config.items() if k not in ("architectures", "torch_dtype", "transformers_version")}
        config = dict(architectures=[architecture], model_type=model_type, torch_dtype=config["torch_dtype"], text_config=nested,
                      vision_config=dict(model_type=f"{model_type}_vision_model"), transformers_version=config["transformers_version"])
        tensors = load_file(folder / "model.safetensors")
        save_file({f"language_model.{n}": t for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, config, folder, dtype=None):
    import torch
    import transformers
    from safetensors.torch import save_file
    torch.set_num_threads(1)
    dtype = dtype or torch.bfloat16
    r = random.Random(number(f"prompts/{name}"))
    prompts = [[r.randrange(3, config["vocab_size"]) for _ in range(n)] for n in PROMPTS]
    for attempt in range(DRAWS):
        model = draw(name, config, folder, attempt, dtype)
        tensors, records = answers(model, prompts)
        notes = {}
        why = why_not(model, prompts, records, notes)
        if not why:
            break
        print(f"{name}: draw {attempt} rejected: {why}", flush=True)
    else:
        raise SystemExit(f"{name}: no draw of {DRAWS} is a golden")
    hub_spelling(name, config, folder, dtype)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "golden.safetensors")
    golden = dict(name=name, kind="causal", arch=config["architectures"][0], model_type=config["model_type"], seed=SEED, attempt=attempt,
                  storage_dtype=str(dtype).removeprefix("torch."), compute_dtype="float32", vocab_size=config["vocab_size"],
                  versions=dict(transformers=transformers.__version__, torch=torch.__version__), noise=notes, prompts=records)
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{name}: draw {attempt}, {notes}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for wanted in sys.argv[1:] or MODELS:
        make(wanted, MODELS[wanted], HERE / wanted)
