/* SPDX-License-Identifier: Apache-2.0 */
/* olmo_hybrid - Olmo Hybrid: most layers have a gated delta net in place of attention, each of q, k
 * and v with a convolution of its own, and norms ahead of their branches; the others are OLMo 3's,
 * with norms behind them, without windows. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                         W_EMBED,          {D_VOCAB, D_HIDDEN},         SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                    W_LM_HEAD,        {D_VOCAB, D_HIDDEN},         SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                 W_FINAL_NORM,     {D_HIDDEN},                  SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",            W_ATTN_NORM,      {D_HIDDEN},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.attention_layer_norm.weight",       W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.q_proj.weight",         W_MIX_Q,          {D_MIX_KEYS, D_HIDDEN},      SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.k_proj.weight",         W_MIX_K,          {D_MIX_KEYS, D_HIDDEN},      SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.v_proj.weight",         W_MIX_V,          {D_MIX_OUT, D_HIDDEN},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.b_proj.weight",         W_MIX_B,          {D_VALUE_HEADS, D_HIDDEN},   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.a_proj.weight",         W_MIX_A,          {D_VALUE_HEADS, D_HIDDEN},   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.g_proj.weight",         W_MIX_Z,          {D_MIX_OUT, D_HIDDEN},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.q_conv1d.weight",       W_CONV_Q,         {D_MIX_KEYS, D_CONV_WIDTH},  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.k_conv1d.weight",       W_CONV_K,         {D_MIX_KEYS, D_CONV_WIDTH},  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.v_conv1d.weight",       W_CONV_V,         {D_MIX_OUT, D_CONV_WIDTH},   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.A_log",                 W_MIX_RATE,       {D_VALUE_HEADS},             SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.dt_bias",               W_MIX_RATE_BIAS,  {D_VALUE_HEADS},             SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.o_norm.weight",         W_MIX_NORM,       {D_VALUE_DIM},               SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.linear_attn.o_proj.weight",         W_MIX_OUT,        {D_HIDDEN, D_MIX_OUT},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.q_proj.weight",           W_Q,              {D_Q, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",           W_K,              {D_KV, D_HIDDEN},            SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",           W_V,              {D_KV, D_HIDDEN},            SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.o_proj.weight",           W_O,              {D_HIDDEN, D_Q},             SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.q_norm.weight",           W_Q_NORM,         {D_Q},                       SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_norm.weight",           W_K_NORM,         {D_KV},                      SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.post_attention_layernorm.weight",   W_ATTN_POST_NORM, {D_HIDDEN},                  SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.post_attention_layernorm.weight",   W_MLP_NORM,       {D_HIDDEN},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.feedforward_layer_norm.weight",     W_ATTN_POST_NORM, {D_HIDDEN},                   SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.feedforward_layer_norm.weight",     W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mlp.gate_proj.weight",              W_GATE,           {D_INTER, D_HIDDEN},         SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",                W_UP,             {D_INTER, D_HIDDEN},         SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",              W_DOWN,           {D_HIDDEN, D_INTER},         SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.post_feedforward_layernorm.weight", W_MLP_POST_NORM,  {D_HIDDEN},                  SHARD_NONE, WHEN_ATTENTION},
};
/* clang-format on */

const struct arch arch_olmo_hybrid = {
    .name = "OlmoHybridForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norms = ARCH_NORMS_MIXER,
            .qk_norm = ARCH_QK_NORM_WHOLE,
            .no_rope = true,
        },
};
