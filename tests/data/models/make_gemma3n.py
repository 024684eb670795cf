#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of Gemma 3n's text models: folders as make_states.py writes them, with weights of this family's own.

    python3 tests/data/models/make_gemma3n.py [NAME …]      # writes tests/data/models/NAME
"""
import make_states
from make_states import BASE, torch

SLIDING, FULL = "sliding_attention", "full_attention"
# as published folders spell it: a width of the MLP and a sparsity for each layer, more ids than the layers' table has rows
GEMMA3N = dict(BASE, architectures=["Gemma3nForCausalLM"], model_type="gemma3n_text", num_attention_heads=4, num_key_value_heads=2,
               head_dim=8, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_bias=False, final_logit_softcapping=30.0,
               vocab_size_per_layer_input=128, hidden_size_per_layer_input=8, altup_active_idx=0, altup_coef_clip=120.0,
               altup_num_inputs=4, query_pre_attn_scalar=256, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=None,
               torch_dtype="bfloat16")
MODELS = {
    # E2B and E4B: the first layers have sparse gates, the last ones read the K and V of others
    "gemma3n": dict(GEMMA3N, num_hidden_layers=5, layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], num_kv_shared_layers=2,
                    sliding_window=20, intermediate_size=[48] * 5, activation_sparsity_pattern=[0.75, 0.6, 0.0, 0.0, 0.0],
                    laurel_rank=6, altup_correct_scale=True, tie_word_embeddings=True),
    # two streams, no scale of the first, one width for all, a table for each end
    "gemma3n-two": dict(GEMMA3N, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], num_kv_shared_layers=0, sliding_window=9,
                        intermediate_size=40, activation_sparsity_pattern=[0.0, 0.0, 0.3], laurel_rank=5, altup_num_inputs=2,
                        altup_correct_scale=False, tie_word_embeddings=False),
}


def fill(model, tied, gen):
    """The products that mix streams are large enough that all of them count."""
    plain(model, tied, gen)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("q_norm.weight"):  # scores have no scale but this one
                p.div_(p.shape[0] ** 0.5)
            elif name.endswith(("prediction_coefs.weight", "correction_coefs.weight")):
                p.copy_(0.5 * torch.randn(p.shape, generator=gen))
            elif name.endswith("modality_router.weight"):
                p.copy_(4.0 * torch.randn(p.shape, generator=gen))
            elif name.endswith("correct_output_scale"):
                p.copy_(1 + 0.3 * torch.randn(p.shape, generator=gen))


def run(model, ids, **more):
    """Layers that have the K and V of others find them in the cache alone."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=True, **more)


def no_states(model, ids, out):
    """../redraw.py writes them."""
    return []


plain = make_states.fill
make_states.fill, make_states.run, make_states.states_of = fill, run, no_states
make_states.MODELS = MODELS

if __name__ == "__main__":
    make_states.main()
