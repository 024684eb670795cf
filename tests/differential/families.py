# SPDX-License-Identifier: Apache-2.0
"""Tiny models of many families, with the answers of transformers (pip install torch transformers safetensors).

    python tests/differential/families.py golden OUT [NAME ...]        # as tests/data/models has them
    python tests/differential/families.py variants OUT [-n N] [--seed S] [NAME ...]

`golden` writes a folder for each name of MODELS: config.json as published folders spell it, config_v5.json as transformers writes
it, model.safetensors with random weights in bfloat16, golden.json and golden.safetensors with the answers in float32 to five
prompts (of a folder that goes to tests/data/models, tests/data/redraw.py then draws the weights itself). `variants` writes folders of
the same form whose config has one key of OPTIONS moved at a time; build/dev/tests/test_model_golden FOLDER ... compares quire with
each of them.

Families that transformers does not have are written with the names that their folders have, of the weights of one that computes
the same: MADE_OF. Random numbers come from the name and the seed alone.
"""
import argparse
import copy
import hashlib
import json
import math
import os
import pathlib
import random
import shutil
import sys
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data/models"))
from make_states import respell  # noqa: E402

PROMPTS = (1, 5, 17, 33, 120)
N_GREEDY, N_TOP, LEAST_GAP = 24, 20, 1e-3
VOCAB, HIDDEN, LAYERS = 128, 32, 2


def number_of(*what):
    return int.from_bytes(hashlib.sha256(":".join(map(str, what)).encode()).digest()[:6], "big")


def base(architecture, model_type, **more):
    """The keys that most folders have; None for a key: it is left out."""
    config = dict(architectures=[architecture], model_type=model_type, vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48,
                  num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu",
                  max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1,
                  eos_token_id=2, torch_dtype="bfloat16")
    config.update(more)
    return {k: v for k, v in config.items() if v is not None}


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)
DYNAMIC = dict(rope_type="dynamic", factor=2.0)


def long_rope(n, original=64):
    return dict(rope_type="longrope", short_factor=[1.0 + 0.05 * i for i in range(n)], long_factor=[1.5 + 0.4 * i for i in range(n)],
                original_max_position_embeddings=original)


def vision(text, architecture, model_type, **more):
    return dict(architectures=[architecture], model_type=model_type, text_config=text, torch_dtype="bfloat16", **more)


PIXTRAL = dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28,
               patch_size=14, head_dim=8)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
              image_size=28, patch_size=14)
QWEN_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=HIDDEN, patch_size=4, num_position_embeddings=4,
                   deepstack_visual_indexes=[0])
MINISTRAL3 = dict(rope_theta=None, head_dim=16, rope_parameters=dict(
    rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, max_position_embeddings=256,
    beta_fast=8.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))
MLA = dict(num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10)

# the keys of base() that older families do not have
NOT_LLAMA = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                           "hidden_act", "rms_norm_eps", "rope_theta"))

MODELS = {
    "apertus": base("ApertusForCausalLM", "apertus", hidden_act="xielu", post_norm=False, qk_norm=True, rope_scaling=LLAMA3),
    "arcee": base("ArceeForCausalLM", "arcee", hidden_act="relu2", rope_scaling=YARN),
    "baichuan": base("BaichuanForCausalLM", "baichuan", num_key_value_heads=None, rope_theta=None, model_max_length=256),
    "baichuan2-13b": base("BaichuanForCausalLM", "baichuan", num_key_value_heads=None, rope_theta=None, model_max_length=256,
                          max_position_embeddings=None, num_attention_heads=6, hidden_size=48, z_loss_weight=0),
    "biogpt": base("BioGptForCausalLM", "biogpt", hidden_act="gelu", rms_norm_eps=None, layer_norm_eps=1e-12, rope_theta=None,
                   num_key_value_heads=None, scale_embedding=True, tie_word_embeddings=True, pad_token_id=0),
    "codegen": base("CodeGenForCausalLM", "codegen", n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=256, n_inner=None, rotary_dim=4,
                    activation_function="gelu_new", layer_norm_epsilon=1e-5, **NOT_LLAMA),
    "cohere2_moe": base("Cohere2MoeForCausalLM", "cohere2_moe", num_hidden_layers=4, head_dim=12, num_experts=4, num_experts_per_tok=2,
                        num_shared_experts=1, intermediate_size=24, prefix_dense_intermediate_size=40, first_k_dense_replace=1,
                        sliding_window=16, sliding_window_pattern=2, layer_norm_eps=1e-5, logit_scale=0.5, rms_norm_eps=None),
    "cwm": base("CwmForCausalLM", "cwm", head_dim=12, sliding_window=16, num_hidden_layers=3, intermediate_size=32,
                layer_types=["full_attention", "sliding_attention", "sliding_attention"], rope_scaling=LLAMA3),
    "ernie4_5": base("Ernie4_5ForCausalLM", "ernie4_5", head_dim=12, use_bias=False, tie_word_embeddings=True, rope_theta=500000.0),
    "exaone": base("ExaoneForCausalLM", "exaone", num_hidden_layers=None, num_layers=LAYERS, hidden_act=None, activation_function="silu",
                   rms_norm_eps=None, layer_norm_epsilon=1e-5, rope_scaling=LLAMA3),
    "gemma3-vision": vision(base("Gemma3ForCausalLM", "gemma3_text", architectures=None, head_dim=12, hidden_act=None,
                                 hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20, sliding_window=16,
                                 rope_theta=1000000.0, rope_local_base_freq=10000.0, tie_word_embeddings=None, rms_norm_eps=1e-6,
                                 rope_scaling=dict(rope_type="linear", factor=8.0), layer_types=["sliding_attention", "full_attention"]),
                            "Gemma3ForConditionalGeneration", "gemma3", vision_config=SIGLIP, mm_tokens_per_image=4,
                            eos_token_id=[2, 5], image_token_index=127),
    "gemma4_unified": base("Gemma4UnifiedForCausalLM", "gemma4_unified_text", num_hidden_layers=4, head_dim=8, global_head_dim=16, hidden_act=None,
                           hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, sliding_window=16, rope_theta=None, attention_k_eq_v=True,
                           num_global_key_value_heads=1, num_kv_shared_layers=0, final_logit_softcapping=30.0, layer_types=[
                               "sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
    "glm": base("GlmForCausalLM", "glm", head_dim=16, pad_token_id=0, attention_bias=True, partial_rotary_factor=0.5, rms_norm_eps=1.5625e-7),
    "gpt_bigcode": base("GPTBigCodeForCausalLM", "gpt_bigcode", n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=256, n_inner=None,
                        activation_function="gelu_pytorch_tanh", layer_norm_epsilon=1e-5, multi_query=True, scale_attn_weights=True,
                        tie_word_embeddings=True, **NOT_LLAMA),
    "gpt_bigcode-heads": base("GPTBigCodeForCausalLM", "gpt_bigcode", n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=256, n_inner=48,
                              activation_function="gelu_pytorch_tanh", layer_norm_epsilon=1e-5, multi_query=False, **NOT_LLAMA),
    "gpt_neo": base("GPTNeoForCausalLM", "gpt_neo", num_layers=3, num_heads=4, attention_types=[[["global", "local"], 1], [["local"], 1]],
                    window_size=16, activation_function="gelu_new", layer_norm_epsilon=1e-5, max_position_embeddings=256,
                    **NOT_LLAMA | dict(hidden_size=HIDDEN)),
    "granite_swa": base("GraniteSWAForCausalLM", "granite_swa", num_hidden_layers=4, embedding_multiplier=2.0, attention_multiplier=0.11,
                        residual_multiplier=0.8, logits_scaling=1.5, sliding_window=16, rms_norm_eps=1e-5, tie_word_embeddings=True,
                        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                        layer_rope_theta=[0, 500.0, 500.0, 20000.0]),
    "helium": base("HeliumForCausalLM", "helium", head_dim=8, rms_norm_eps=1e-8, rope_theta=100000.0),
    "hunyuan_v1_dense": base("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", head_dim=16, tie_word_embeddings=True, use_cla=False,
                             use_qk_norm=True, rope_scaling=dict(type="dynamic", alpha=50.0, factor=1.0, beta_fast=32, beta_slow=1,
                                                                 mscale=1.0, mscale_all_dim=0.0)),
    "hyperclovax": base("HyperCLOVAXForCausalLM", "hyperclovax", embedding_multiplier=6.0, logits_scaling=0.5, residual_multiplier=0.6,
                        attention_multiplier=0.2, use_post_norm=True, head_dim=8),
    "internlm": base("InternLMForCausalLM", "internlm", bias=True, num_key_value_heads=None, rope_theta=None),
    "internlm2": base("InternLM2ForCausalLM", "internlm2", bias=False, rope_scaling=dict(type="dynamic", factor=2.0)),
    "internlm3": base("InternLM3ForCausalLM", "internlm3", qkv_bias=True, bias=True, head_dim=12),
    "iquestcoder": base("IQuestCoderForCausalLM", "iquestcoder", head_dim=8),
    "jais2": base("Jais2ForCausalLM", "jais2", hidden_act="relu2", attention_bias=True, mlp_bias=True, rms_norm_eps=None,
                  layer_norm_eps=1e-5),
    "mimo_v2_flash": base("MiMoV2FlashForCausalLM", "mimo_v2_flash", num_hidden_layers=3, head_dim=12, v_head_dim=8, num_key_value_heads=1,
                          n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, rope_theta=None, pad_token_id=0,
                          rms_norm_eps=1e-5, sliding_window=16, n_group=1, topk_group=1),
    "minicpm": base("MiniCPMForCausalLM", "minicpm", scale_emb=6, scale_depth=1.4, dim_model_base=16, tie_word_embeddings=True),
    "minicpm-longrope": base("MiniCPMForCausalLM", "minicpm", scale_emb=6, scale_depth=1.4, dim_model_base=16,
                             rope_scaling=long_rope(4)),
    "minicpm3": base("MiniCPM3ForCausalLM", "minicpm3", scale_emb=6, scale_depth=1.4, dim_model_base=16, tie_word_embeddings=True,
                     rope_scaling=long_rope(2), **MLA),
    "minimax": base("MiniMaxForCausalLM", "minimax", num_hidden_layers=4, head_dim=12, num_local_experts=4, num_experts_per_tok=2,
                    intermediate_size=24, block_size=16, layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
                    full_attn_alpha_factor=1.3, full_attn_beta_factor=0.8, linear_attn_alpha_factor=1.5, linear_attn_beta_factor=0.9,
                    mlp_alpha_factor=1.2, mlp_beta_factor=1.1),
    "ministral": base("MinistralForCausalLM", "ministral", head_dim=12, sliding_window=16,
                      layer_types=["sliding_attention", "full_attention"]),
    "ministral3": base("Ministral3ForCausalLM", "ministral3", sliding_window=None, **MINISTRAL3),
    "mistral3-vision": vision(base("Mistral3ForCausalLM", "ministral3", architectures=None, tie_word_embeddings=True, **MINISTRAL3),
                              "Mistral3ForConditionalGeneration", "mistral3", vision_config=PIXTRAL, image_token_index=10,
                              spatial_merge_size=1, vision_feature_layer=-1, tie_word_embeddings=True),
    "mpt": base("MptForCausalLM", "mpt", d_model=48, n_heads=6, n_layers=LAYERS, max_seq_len=256, expansion_ratio=4, no_bias=True,
                norm_type="low_precision_layernorm", learned_pos_emb=True, logit_scale=None,
                attn_config=dict(alibi=True, alibi_bias_max=8, clip_qkv=1.5, softmax_scale=None, qk_ln=False, prefix_lm=False),
                tie_word_embeddings=True, **NOT_LLAMA),
    "nanochat": base("NanoChatForCausalLM", "nanochat", hidden_act="relu2", rms_norm_eps=1e-6, final_logit_softcapping=15.0),
    "nemotron": base("NemotronForCausalLM", "nemotron", hidden_act="relu2", rms_norm_eps=None, norm_eps=1e-5, head_dim=12,
                     partial_rotary_factor=0.5),
    "olmo3": base("Olmo3ForCausalLM", "olmo3", sliding_window=16, layer_types=["sliding_attention", "full_attention"],
                  rope_theta=500000.0, rope_scaling=YARN),
    "olmo_hybrid": base("OlmoHybridForCausalLM", "olmo_hybrid", num_hidden_layers=4, pad_token_id=0, rope_theta=None, rope_parameters=dict(
        rope_theta=10000.0, rope_type="default"), layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"]),
    "phi4-mini": base("Phi3ForCausalLM", "phi3", partial_rotary_factor=0.75, head_dim=None, tie_word_embeddings=True, sliding_window=262144,
                      original_max_position_embeddings=64, pad_token_id=0, rope_scaling=dict(
                          type="longrope", short_factor=[1.0, 1.1, 1.2], long_factor=[1.5, 2.5, 4.0])),
    "qwen2_5-vision": vision(base("x", "qwen2_5_vl_text", architectures=None, rope_scaling=dict(type="mrope", mrope_section=[1, 1, 2])),
                             "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", vision_config=dict(
                                 depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=HIDDEN, patch_size=4,
                                 fullatt_block_indexes=[0], window_size=8),
                             image_token_id=120, video_token_id=121, vision_start_token_id=122, vision_end_token_id=123),
    "qwen3-vision": vision(base("x", "qwen3_vl_text", architectures=None, head_dim=12, tie_word_embeddings=True, rope_scaling=dict(
        rope_type="default", mrope_interleaved=True, mrope_section=[2, 2, 2])), "Qwen3VLForConditionalGeneration", "qwen3_vl",
        vision_config=QWEN_VISION, tie_word_embeddings=True, image_token_id=120, video_token_id=121, vision_start_token_id=122,
        vision_end_token_id=123),
    "seed_oss": base("SeedOssForCausalLM", "seed_oss", head_dim=12, attention_bias=True, attention_out_bias=False),
    "vaultgemma": base("VaultGemmaForCausalLM", "vaultgemma", head_dim=12, hidden_act=None, hidden_activation="gelu_pytorch_tanh",
                       query_pre_attn_scalar=20, sliding_window=16, attn_logit_softcapping=3.0, final_logit_softcapping=6.0,
                       layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=True),
    "yi": base("LlamaForCausalLM", "llama", rope_theta=5000000.0, rms_norm_eps=1e-6, attention_bias=False),
    "youtu": base("YoutuForCausalLM", "youtu", tie_word_embeddings=True, rope_interleave=True, **MLA),
}

# What is moved in variants: values of a key, or of several.
ROPES = [dict(rope_scaling=r) for r in (None, LLAMA3, YARN, DYNAMIC, dict(type="linear", factor=3.0))]
BIASES = [dict(attention_bias=True), dict(attention_bias=False)]
TIES = [dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)]
HEADS = [dict(num_key_value_heads=1), dict(num_key_value_heads=4), dict(head_dim=16)]
MLPS = [dict(mlp_bias=True)]
LONG = [dict(rope_scaling=long_rope(4), max_position_embeddings=256), dict(rope_theta=1234.5), dict(rms_norm_eps=1e-3)]
COMMON = ROPES + TIES + HEADS[:2] + LONG[1:]
OPTIONS = {
    "apertus": COMMON + BIASES + [dict(rope_scaling=long_rope(4))],
    "arcee": COMMON + BIASES + MLPS + HEADS,
    "cohere2_moe": TIES + HEADS + BIASES + [
        dict(rms_norm_eps=1e-6), dict(expert_selection_fn="sigmoid"), dict(expert_selection_fn="sigmoid", norm_topk_prob=False),
        dict(shared_expert_combination_strategy="sum"), dict(num_shared_experts=0), dict(num_shared_experts=2), dict(num_experts_per_tok=1),
        dict(first_k_dense_replace=None), dict(first_k_dense_replace=3, prefix_dense_sliding_window_pattern=2), dict(sliding_window_pattern=3),
        dict(prefix_dense_intermediate_size=None), dict(layer_types=["full_attention"] * 4), dict(logit_scale=None), dict(rope_scaling=YARN)],
    "cwm": COMMON + [dict(sliding_window=5), dict(layer_types=["sliding_attention"] * 3)],
    "ernie4_5": COMMON + [dict(use_bias=True), dict(head_dim=16)],
    "gemma4_unified": TIES + BIASES + [
        dict(attention_k_eq_v=False), dict(num_kv_shared_layers=2), dict(num_kv_shared_layers=2, use_double_wide_mlp=True),
        dict(final_logit_softcapping=None), dict(sliding_window=5), dict(layer_types=None, num_hidden_layers=7), dict(num_global_key_value_heads=4),
        dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=5e5), sliding_attention=dict(rope_type="default", rope_theta=700.0)))],
    "glm": COMMON[:2] + TIES + BIASES + [dict(partial_rotary_factor=1.0), dict(head_dim=16), dict(partial_rotary_factor=0.25, head_dim=16)],
    "helium": COMMON + BIASES + MLPS,
    "hunyuan_v1_dense": COMMON + BIASES + HEADS,
    "hyperclovax": COMMON + BIASES + MLPS + [dict(use_post_norm=False), dict(attention_multiplier=None), dict(logits_scaling=3.0),
                                             dict(embedding_multiplier=None, residual_multiplier=None, logits_scaling=None)],
    "internlm3": COMMON[:5] + TIES + [dict(qkv_bias=False, bias=False), dict(head_dim=16)],
    "iquestcoder": COMMON + BIASES + MLPS,
    "jais2": ROPES + TIES + BIASES + MLPS + [dict(mlp_bias=False), dict(layer_norm_eps=1e-3)],
    "mimo_v2_flash": TIES + [
        dict(v_head_dim=12), dict(v_head_dim=3), dict(num_key_value_heads=2), dict(attention_value_scale=1.5), dict(sliding_window_size=5),
        dict(layer_types=["sliding_attention", "full_attention", "full_attention"]), dict(num_hidden_layers=7), dict(norm_topk_prob=False),
        dict(mlp_layer_types=["sparse", "dense", "sparse"]), dict(n_group=2), dict(routed_scaling_factor=2.5), dict(head_dim=24, v_head_dim=16),
        dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=5e5, partial_rotary_factor=0.67),
                                  sliding_attention=dict(rope_type="default", rope_theta=700.0, partial_rotary_factor=0.67)))],
    "minicpm3": TIES + [dict(q_lora_rank=None, rope_scaling=None), dict(scale_depth=3.0), dict(scale_emb=1), dict(dim_model_base=32), dict(v_head_dim=None),
                        dict(rope_scaling=YARN), dict(rope_scaling=None), dict(rope_scaling=LLAMA3)],
    "minimax": COMMON + HEADS + [
        dict(num_experts_per_tok=1), dict(num_local_experts=6, num_experts_per_tok=3), dict(layer_types=None), dict(block_size=7),
        dict.fromkeys(("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor",
                       "mlp_alpha_factor", "mlp_beta_factor"))],
    "ministral": COMMON + [dict(sliding_window=None, layer_types=None), dict(layer_types=None)],
    "ministral3": TIES + HEADS + [dict(sliding_window=20), dict(rope_parameters=dict(MINISTRAL3["rope_parameters"], llama_4_scaling_beta=0.0)),
                                  dict(rope_parameters=dict(MINISTRAL3["rope_parameters"], mscale=1.0, mscale_all_dim=0.5))],
    "mistral3-vision": [], "gemma3-vision": [], "qwen2_5-vision": [], "qwen3-vision": [],
    "nemotron": COMMON[:3] + TIES + BIASES + MLPS + [dict(partial_rotary_factor=1.0), dict(partial_rotary_factor=0.25, head_dim=16), dict(norm_eps=1e-3)],
    "olmo3": [dict(rope_scaling=None)] + TIES + BIASES + [dict(sliding_window=5), dict(num_key_value_heads=4), dict(layer_types=None, num_hidden_layers=5)],
    "olmo_hybrid": TIES + HEADS[:2] + LONG[2:] + [
        dict(rope_parameters=None), dict(rope_parameters=dict(rope_theta=None, rope_type="default")), dict(rope_parameters=dict(LLAMA3, rope_theta=5e5)),
        dict(linear_allow_neg_eigval=False), dict(layer_types=None, num_hidden_layers=5), dict(layer_types=None, num_hidden_layers=3),
        dict(linear_num_key_heads=2), dict(linear_key_head_dim=4, linear_value_head_dim=20), dict(linear_conv_kernel_dim=2)],
    "phi4-mini": TIES + [dict(partial_rotary_factor=1.0, rope_scaling=long_rope(4)), dict(sliding_window=16), dict(rope_scaling=None)],
    "seed_oss": COMMON + BIASES + MLPS + [dict(attention_out_bias=True), dict(head_dim=16)],
    "vaultgemma": COMMON + BIASES + [dict(attn_logit_softcapping=None, final_logit_softcapping=None), dict(query_pre_attn_scalar=12)],
    "yi": COMMON + BIASES + MLPS + HEADS,
    "youtu": TIES + [dict(q_lora_rank=None), dict(rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.7)), dict(rope_theta=777.0)],
}


# ---- families that transformers does not have: of which the weights are, and what becomes of them ----

def llama_of(config, **more):
    same = {k: config[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "rope_theta", "rope_scaling",
                                   "num_attention_heads", "tie_word_embeddings", "bos_token_id", "eos_token_id") if k in config}
    same.update(num_hidden_layers=config.get("num_hidden_layers", config.get("num_layers")), rms_norm_eps=config.get("rms_norm_eps", 1e-5),
                num_key_value_heads=config.get("num_key_value_heads", config["num_attention_heads"]))
    same.setdefault("max_position_embeddings", config.get("model_max_length", 2048))
    return dict(base("LlamaForCausalLM", "llama"), **dict(same, **more))


def granite_of(config):
    llama = llama_of(config)
    heads = config["hidden_size"] // config["num_attention_heads"]
    return dict(llama, architectures=["GraniteForCausalLM"], model_type="granite", embedding_multiplier=float(config["scale_emb"]),
                residual_multiplier=config["scale_depth"] / math.sqrt(llama["num_hidden_layers"]), attention_multiplier=heads ** -0.5,
                logits_scaling=config["hidden_size"] / config["dim_model_base"])


def to_internlm2(state, config):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    names = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm"}
    out = {}
    for name, x in state.items():
        if any(p in name for p in ("k_proj", "v_proj")):
            continue
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", p)].unflatten(0, (kv, -1)) for p in ("q_proj", "k_proj", "v_proj")]
            assert parts[0].shape[1] == heads // kv * parts[1].shape[1]
            out[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).flatten(0, 1).contiguous()
            continue
        for a, b in names.items():
            name = name.replace(a, b) if name.startswith(a) or "." + a + "." in name else name
        out[name] = x
    return out


def to_baichuan(state, config):
    out = {}
    for name, x in state.items():
        if "q_proj" in name:
            out[name.replace("q_proj", "W_pack")] = torch.cat([state[name.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")])
        elif "k_proj" not in name and "v_proj" not in name:
            out[name] = x
    return out


def to_exaone(state, config):
    names = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h", "self_attn.o_proj": "attn.attention.out_proj",
             "self_attn": "attn.attention", "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
             "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"}
    out = {}
    for name, x in state.items():
        for a, b in names.items():
            name = name.replace(a, b)
        out[name] = x
    return out


def plain(state, config):
    return state


MADE_OF = {
    "baichuan": (llama_of, to_baichuan),
    "exaone": (llama_of, to_exaone),
    "internlm": (lambda c: llama_of(c, attention_bias=c["bias"]), plain),
    "internlm2": (lambda c: llama_of(c, attention_bias=c["bias"]), to_internlm2),
    "minicpm": (granite_of, plain),
}


class Slopes(torch.nn.Module):
    """A llama whose scores have slopes in place of a rope, and whose head has rows of length 1."""

    def __init__(self, model, config):
        super().__init__()
        self.model, self.config = model, config

    def forward(self, input_ids, **more):
        n, heads = input_ids.shape[1], self.config["num_attention_heads"]
        power = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)] + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
        dtype = self.model.lm_head.weight.dtype
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        mask = torch.tensor(slopes, dtype=dtype)[:, None, None] * distance.to(dtype)
        mask = mask.masked_fill(distance > 0, torch.finfo(dtype).min)[None]
        head = copy.deepcopy(self.model.lm_head.weight.data)
        self.model.lm_head.weight.data = torch.nn.functional.normalize(head)
        out = self.model(input_ids=input_ids, attention_mask=mask, position_ids=torch.zeros(1, n, dtype=torch.long), **more)
        self.model.lm_head.weight.data = head
        return out


# ---- weights ----

def fill(model, generator, tied, scale):
    """Numbers that keep logits well apart: projections of about 1.5 / sqrt(64), norms around what they begin with."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            r, low = torch.randn(p.shape, generator=generator), name.lower()
            if "norm" in low and low.endswith("bias"):
                p.copy_(0.15 * r)
            elif "norm" in low:
                centre = 1.0 if float(p.float().mean()) > 0.5 else 0.0
                is_last = tied and low.endswith(("model.norm.weight", "language_model.norm.weight"))
                p.copy_(centre + (2.0 * scale if is_last else 0.0) + 0.15 * r)
            elif "alpha_" in low:
                p.copy_(0.5 * r)
            elif p.dim() == 1:
                p.copy_(0.15 * r)
            elif "lm_head" in low:
                p.copy_(2.2 / math.sqrt(p.shape[1]) * r)
            elif "embed_tokens" in low:
                p.copy_((0.15 / scale if tied else 0.8) * r)
            else:
                p.copy_(1.5 / 8 * r)
    model.tie_weights()


def build(config, made_of, seed):
    as_llama = made_of["model_type"] in ("internlm3", "iquestcoder")  # which transformers computes by Llama's class
    cls = transformers.LlamaForCausalLM if as_llama else getattr(transformers, made_of["architectures"][0])
    here = pathlib.Path(f"/tmp/quire-families-{os.getpid()}")
    here.mkdir(exist_ok=True)
    (here / "config.json").write_text(json.dumps(made_of))
    made = transformers.AutoConfig.from_pretrained(here)
    shutil.rmtree(here)
    made.dtype = made.get_text_config().dtype = torch.float32
    made._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = cls(made).float().eval()
    text = config.get("text_config", config)
    scale = math.sqrt(float(text.get("scale_emb", text.get("embedding_multiplier", 1)) or 1))
    if "gemma" in text["model_type"]:
        scale = text["hidden_size"] ** 0.25
    fill(model, torch.Generator().manual_seed(seed), bool(made.tie_word_embeddings), scale)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16().float())  # buffers, such as a rope's frequencies, stay as they are
    return model


def reset_rope(model):
    for m in model.modules():
        if hasattr(m, "original_inv_freq") and hasattr(m, "inv_freq"):
            m.inv_freq = m.original_inv_freq.clone()
            m.max_seq_len_cached = getattr(m, "original_max_seq_len", None)


def run(model, ids, **more):
    reset_rope(model)
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False, **more)


def answers(model, prompts):
    arrays, records = {}, []
    for k, ids in enumerate(prompts):
        out = run(model, ids, output_hidden_states=len(ids) == 5)
        logits = out.logits[0].float()
        logprobs = torch.log_softmax(logits.double(), -1)
        best, which = torch.topk(logprobs, N_TOP, dim=-1)
        arrays[f"p{k}.logits_last"] = logits[-1].clone()
        arrays[f"p{k}.top20_ids"], arrays[f"p{k}.top20_logprobs"] = which.to(torch.int32), best.float()
        for i, h in enumerate((out.hidden_states or ()) if len(ids) == 5 else ()):
            arrays[f"p{k}.hidden.{i}"] = h[0].float().clone()
        sequence, tokens, gaps, chosen = list(ids), [], [], []
        for _ in range(N_GREEDY):
            last = run(model, sequence).logits[0, -1].float()
            values, two = torch.topk(last, 2)
            tokens.append(int(two[0]))
            gaps.append(float(values[0] - values[1]))
            chosen.append(float(torch.log_softmax(last.double(), -1)[two[0]]))
            sequence.append(tokens[-1])
        records.append(dict(len=len(ids), ids=ids, prompt_logprobs=[None] + [float(logprobs[t - 1, ids[t]]) for t in range(1, len(ids))],
                            greedy=tokens, greedy_logprobs=chosen, greedy_min_gap=min(gaps)))
    return arrays, records


def write_folder(out, name, config, made_of, rename, model, answer):
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = copy.deepcopy(model).to(torch.bfloat16)
    model.config.dtype = model.config.get_text_config().dtype = torch.bfloat16
    if made_of is config:
        model.save_pretrained(folder)
        if config["model_type"] in ("minimax", "olmo_hybrid"):
            respell(folder, config)
        os.replace(folder / "config.json", folder / "config_v5.json")
    else:
        state = {k: v for k, v in model.state_dict().items() if not (config["tie_word_embeddings"] and k == "lm_head.weight")}
        save_file({k: v.contiguous() for k, v in rename(state, config).items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    outer = dict(config.get("text_config", {}), **config)
    (folder / "generation_config.json").write_text(json.dumps({k: outer[k] for k in ("bos_token_id", "eos_token_id") if k in outer}) + "\n")
    arrays, golden = answer
    save_file({k: v.contiguous() for k, v in arrays.items()}, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def make(out, name, config, seed, strict=True):
    family = name.split("-")[0] if config["model_type"] in MADE_OF else None
    maker, rename = MADE_OF.get(config["model_type"], (None, plain))
    made_of = maker(config) if maker else config
    text = config.get("text_config", config)
    for attempt in range(40):
        number = number_of(name, seed, attempt)
        rng = random.Random(number)
        prompts = [[rng.randrange(3, VOCAB - 16) for _ in range(n)] for n in PROMPTS]
        model = build(config, made_of, number)
        reference = model
        if text["model_type"] == "baichuan" and "max_position_embeddings" not in config:
            reference = Slopes(reference, config)
        arrays, records = answers(reference, prompts)
        gap = min(r["greedy_min_gap"] for r in records)
        if strict and (gap < LEAST_GAP or (attempt < 20 and min(len(set(r["greedy"])) for r in records) < 6)):
            continue
        golden = dict(name=name, kind="causal", arch=config["architectures"][0], model_type=config["model_type"], seed=seed, attempt=attempt,
                      storage_dtype="bfloat16", compute_dtype="float32", vocab_size=VOCAB, min_gap=gap, prompts=records,
                      versions=dict(transformers=transformers.__version__, torch=torch.__version__))
        write_folder(out, name, config, made_of, rename, model, (arrays, golden))
        return sum(f.stat().st_size for f in (out / name).iterdir()), attempt
    raise RuntimeError(f"{name}: no attempt has well separated logits")


def moved(config, option):
    new = copy.deepcopy(config)
    for key, value in option.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("golden", "variants"))
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-n", type=int, default=0)
    parser.add_argument("--seed", type=int, default=19)
    o = parser.parse_args()
    failed = 0
    for name in o.names or MODELS:
        options = [{}] if o.what == "golden" else OPTIONS.get(name, [])
        for i, option in enumerate(options[:o.n] if o.n else options):
            folder = name if o.what == "golden" else f"{name}-{i}"
            try:
                size, attempt = make(o.out, folder, moved(MODELS[name], option), o.seed, strict=o.what == "golden")
                print(f"{folder}: {size} bytes, attempt {attempt} {option or ''}", flush=True)
            except Exception as error:  # noqa: BLE001
                failed += 1
                print(f"{folder}: {type(error).__name__}: {str(error)[:300]} {option}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
