/* SPDX-License-Identifier: Apache-2.0 */
/* nemotron - Nemotron-4 and Minitron: LayerNorm stored as its weight less 1, an MLP without a
 * gate of squared relu, partial rope. Source: arXiv:2402.16819. A family with its tensors:
 * jais2. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                       W_EMBED,           {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                  W_LM_HEAD,         {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                               W_FINAL_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.norm.bias",                                 W_FINAL_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",          W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.bias",            W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",         W_Q,               {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",         W_K,               {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",         W_V,               {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",         W_O,               {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",           W_Q_BIAS,          {D_Q},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",           W_K_BIAS,          {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",           W_V_BIAS,          {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",           W_O_BIAS,          {D_HIDDEN},          SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.post_attention_layernorm.weight", W_MLP_NORM,        {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.bias",   W_MLP_NORM_BIAS,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",              W_UP,              {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",            W_DOWN,            {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.bias",                W_UP_BIAS,         {D_INTER},           SHARD_ROWS, WHEN_MLP_BIAS},
    {"model.layers.%u.mlp.down_proj.bias",              W_DOWN_BIAS,       {D_HIDDEN},          SHARD_NONE, WHEN_MLP_BIAS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",   W_IGNORE,          {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_nemotron = {
    .name = "NemotronForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .norm_plus_one = true,
            .mlp = ARCH_MLP_PLAIN,
            .activations = 1u << ARCH_RELU2,
        },
};

/* Jais 2: LayerNorm, an MLP without a gate of squared relu, biases. */
const struct arch arch_jais2 = {
    .name = "Jais2ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .mlp = ARCH_MLP_PLAIN,
            .activations = 1u << ARCH_RELU2,
        },
};
