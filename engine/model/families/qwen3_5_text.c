/* SPDX-License-Identifier: Apache-2.0 */
/* qwen3_5_text - Qwen3.5: qwen3_next without experts, the first product of the delta net in four
 * tensors.
 * qwen3_5_moe_text - the same with experts and one that all rows use. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                          W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                     W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                  W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",             W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.linear_attn.in_proj_qkv.weight",     W_MIX_QKV,        {D_CONV, D_HIDDEN},           SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.in_proj_z.weight",       W_MIX_Z,          {D_MIX_OUT, D_HIDDEN},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.in_proj_b.weight",       W_MIX_B,          {D_VALUE_HEADS, D_HIDDEN},    SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.in_proj_a.weight",       W_MIX_A,          {D_VALUE_HEADS, D_HIDDEN},    SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.conv1d.weight",          W_CONV,           {D_CONV, D_CONV_WIDTH},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.A_log",                  W_MIX_RATE,       {D_VALUE_HEADS},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.dt_bias",                W_MIX_RATE_BIAS,  {D_VALUE_HEADS},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.norm.weight",            W_MIX_NORM,       {D_VALUE_DIM},                SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.out_proj.weight",        W_MIX_OUT,        {D_HIDDEN, D_MIX_OUT},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.q_proj.weight",            W_Q_GATED,        {D_2_Q, D_HIDDEN},            SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",            W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",            W_V,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.o_proj.weight",            W_O,              {D_HIDDEN, D_Q},              SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.q_norm.weight",            W_Q_NORM,         {D_HEAD},                     SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_norm.weight",            W_K_NORM,         {D_HEAD},                     SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.post_attention_layernorm.weight",    W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",               W_GATE,           {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.up_proj.weight",                 W_UP,             {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.down_proj.weight",               W_DOWN,           {D_HIDDEN, D_INTER},          SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.mlp.gate.weight",                    W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_expert_gate.weight",      W_SHARED_GATE,    {D_ONE, D_HIDDEN},            SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_expert.gate_proj.weight", W_GATE,           {D_SHARED_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_expert.up_proj.weight",   W_UP,             {D_SHARED_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_expert.down_proj.weight", W_DOWN,           {D_HIDDEN, D_SHARED_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.gate_proj.weight",    W_EXPERT_GATE,    {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.up_proj.weight",      W_EXPERT_UP,      {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.down_proj.weight",    W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",           W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"model.layers.%u.mlp.experts.down_proj",              W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_STORED},
};
/* clang-format on */

const struct arch arch_qwen3_5_text = {
    .name = "Qwen3_5ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm_plus_one = true,
            .qk_norm = ARCH_QK_NORM_HEADS,
            .gated = true,
        },
};

const struct arch arch_qwen3_5_moe_text = {
    .name = "Qwen3_5MoeForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm_plus_one = true,
            .qk_norm = ARCH_QK_NORM_HEADS,
            .gated = true,
        },
};
