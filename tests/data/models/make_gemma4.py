#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of Gemma 4's text models: folders as make_states.py writes them, with weights of these families' own.

    python3 tests/data/models/make_gemma4.py [NAME …]      # writes tests/data/models/NAME
"""
import make_states
from make_states import BASE, math, torch

# heads of layers without a window are twice as wide, and a quarter of these pairs is rotated
GEMMA4 = dict(BASE, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", intermediate_size=24, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, global_head_dim=16, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
              sliding_window=20, attention_bias=False, tie_word_embeddings=True, final_logit_softcapping=30.0,
              vocab_size_per_layer_input=128, num_kv_shared_layers=0, hidden_size_per_layer_input=0, attention_k_eq_v=False,
              enable_moe_block=False, use_double_wide_mlp=False, num_global_key_value_heads=None, num_experts=None,
              top_k_experts=None, moe_intermediate_size=None, torch_dtype="bfloat16",
              rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
                                   sliding_attention=dict(rope_type="default", rope_theta=1e4)))
INPUTS = ("vocab_size_per_layer_input", "hidden_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts",
          "moe_intermediate_size")
UNIFIED = {k: v for k, v in GEMMA4.items() if k not in INPUTS} | dict(architectures=["Gemma4UnifiedForCausalLM"],
                                                                    model_type="gemma4_unified_text")
SLIDING, FULL = "sliding_attention", "full_attention"
MODELS = {
    # E2B and E4B: inputs of each layer, last layers that read the K and V of others and have twice the MLP
    "gemma4": dict(GEMMA4, num_hidden_layers=5, layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], num_kv_shared_layers=2,
                   hidden_size_per_layer_input=8, use_double_wide_mlp=True, num_key_value_heads=1),
    # 31B: V is K before its norm, and fewer KV heads, in layers without a window
    "gemma4-dense": dict(GEMMA4, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], attention_k_eq_v=True,
                         num_global_key_value_heads=1, tie_word_embeddings=False),
    # 12B: neither inputs nor experts
    "gemma4_unified": dict(UNIFIED, num_hidden_layers=4, layer_types=[SLIDING, FULL, SLIDING, FULL], attention_k_eq_v=True,
                           num_global_key_value_heads=1, num_kv_shared_layers=1, use_bidirectional_attention="vision", tie_word_embeddings=False),
    # 26B-A4B: an MLP and experts beside it
    "gemma4-moe": dict(GEMMA4, num_hidden_layers=2, layer_types=[SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1,
                       enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16, tie_word_embeddings=False),
}


def fill(model, tied, gen):
    plain(model, tied, gen)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("router.scale", "per_expert_scale")):
                p.copy_(1 + 0.3 * torch.randn(p.shape, generator=gen))
            elif name.endswith("q_norm.weight"):  # scores have no scale but this one
                p.div_(math.sqrt(p.shape[0]))
            elif name.endswith("router.proj.weight"):
                p.copy_(2.0 * torch.randn(p.shape, generator=gen))
        for name, b in model.named_buffers():
            if name.endswith("layer_scalar"):
                b.copy_(0.9 + 0.2 * torch.rand(b.shape, generator=gen))
    assert math.isfinite(float(sum(p.sum() for p in model.parameters())))


plain = make_states.fill
make_states.fill = fill
make_states.MODELS = MODELS

if __name__ == "__main__":
    make_states.main()
