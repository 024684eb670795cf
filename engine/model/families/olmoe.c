/* SPDX-License-Identifier: Apache-2.0 */
/* olmoe - llama with experts in every layer, and an RMS norm over the whole of q and of k. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                                W_EMBED,        {D_VOCAB, D_HIDDEN},         SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,      {D_VOCAB, D_HIDDEN},         SHARD_ROWS,  WHEN_UNTIED},
    {"model.norm.weight",                                        W_FINAL_NORM,   {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                   W_ATTN_NORM,    {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",                  W_Q,            {D_Q, D_HIDDEN},             SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",                  W_K,            {D_KV, D_HIDDEN},            SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",                  W_V,            {D_KV, D_HIDDEN},            SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",                  W_O,            {D_HIDDEN, D_Q},             SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",                    W_Q_BIAS,       {D_Q},                       SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",                    W_K_BIAS,       {D_KV},                      SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",                    W_V_BIAS,       {D_KV},                      SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",                    W_O_BIAS,       {D_HIDDEN},                  SHARD_NONE,  WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.q_norm.weight",                  W_Q_NORM,       {D_Q},                       SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_norm.weight",                  W_K_NORM,       {D_KV},                      SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",          W_MLP_NORM,     {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate.weight",                          W_ROUTER,       {D_EXPERTS, D_HIDDEN},       SHARD_NONE,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.gate_proj.weight",          W_EXPERT_GATE,  {D_EXPERT_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.up_proj.weight",            W_EXPERT_UP,    {D_EXPERT_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.down_proj.weight",          W_EXPERT_DOWN,  {D_HIDDEN, D_EXPERT_INTER},  SHARD_COLS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",                 W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"model.layers.%u.mlp.experts.down_proj",                    W_EXPERT_DOWN, {D_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_STORED},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",            W_IGNORE,       {D_NONE},                    SHARD_NONE,  WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_olmoe = {
    .name = "OlmoeForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .qk_norm = ARCH_QK_NORM_WHOLE,
            .clips = true,
        },
};
