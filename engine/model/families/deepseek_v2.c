/* SPDX-License-Identifier: Apache-2.0 */
/* deepseek_v2 - latent attention, and experts beside one that all rows use, behind dense layers.
 * Source: arXiv:2405.04434. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                                W_EMBED,        {D_VOCAB, D_HIDDEN},         SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,      {D_VOCAB, D_HIDDEN},         SHARD_ROWS,  WHEN_UNTIED},
    {"model.norm.weight",                                        W_FINAL_NORM,   {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                   W_ATTN_NORM,    {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",                  W_Q,            {D_Q, D_HIDDEN},             SHARD_ROWS,  WHEN_Q_WHOLE},
    {"model.layers.%u.self_attn.q_a_proj.weight",                W_Q,            {D_Q_RANK, D_HIDDEN},        SHARD_NONE,  WHEN_Q_RANK},
    {"model.layers.%u.self_attn.q_a_layernorm.weight",           W_Q_NORM,       {D_Q_RANK},                  SHARD_NONE,  WHEN_Q_RANK},
    {"model.layers.%u.self_attn.q_b_proj.weight",                W_Q_B,          {D_Q, D_Q_RANK},             SHARD_ROWS,  WHEN_Q_RANK},
    {"model.layers.%u.self_attn.kv_a_proj_with_mqa.weight",      W_KV_A,         {D_KV_A, D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.kv_a_layernorm.weight",          W_K_NORM,       {D_KV_RANK},                 SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.kv_b_proj.weight",               W_KV_B,         {D_KV_B, D_KV_RANK},         SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",                  W_O,            {D_HIDDEN, D_HEADS_V},       SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",          W_MLP_NORM,     {D_HIDDEN},                  SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",                     W_GATE,         {D_INTER, D_HIDDEN},         SHARD_ROWS,  WHEN_DENSE},
    {"model.layers.%u.mlp.up_proj.weight",                       W_UP,           {D_INTER, D_HIDDEN},         SHARD_ROWS,  WHEN_DENSE},
    {"model.layers.%u.mlp.down_proj.weight",                     W_DOWN,         {D_HIDDEN, D_INTER},         SHARD_COLS,  WHEN_DENSE},
    {"model.layers.%u.mlp.gate.weight",                          W_ROUTER,       {D_EXPERTS, D_HIDDEN},       SHARD_NONE,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_experts.gate_proj.weight",      W_GATE,         {D_SHARED_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_SHARED},
    {"model.layers.%u.mlp.shared_experts.up_proj.weight",        W_UP,           {D_SHARED_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_SHARED},
    {"model.layers.%u.mlp.shared_experts.down_proj.weight",      W_DOWN,         {D_HIDDEN, D_SHARED_INTER},  SHARD_COLS,  WHEN_SHARED},
    {"model.layers.%u.mlp.experts.%u.gate_proj.weight",          W_EXPERT_GATE,  {D_EXPERT_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.up_proj.weight",            W_EXPERT_UP,    {D_EXPERT_INTER, D_HIDDEN},  SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.down_proj.weight",          W_EXPERT_DOWN,  {D_HIDDEN, D_EXPERT_INTER},  SHARD_COLS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",                 W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"model.layers.%u.mlp.experts.down_proj",                    W_EXPERT_DOWN, {D_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_STORED},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",            W_IGNORE,       {D_NONE},                    SHARD_NONE,  WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_deepseek_v2 = {
    .name = "DeepseekV2ForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .attention = ARCH_ATTENTION_LATENT,
            .positions = ARCH_ROPE_INTERLEAVED,
            .share = ARCH_SHARE_WHOLE,
        },
};

/* Mistral Small 4: without groups of experts, whose weights add up to 1; q grows with its
 * position. */
const struct arch arch_mistral4 = {
    .name = "Mistral4ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .attention = ARCH_ATTENTION_LATENT,
            .positions = ARCH_ROPE_INTERLEAVED,
            .query_growth = ARCH_QUERY_GROWTH_ALL,
            .share = ARCH_SHARE_WHOLE,
        },
};
