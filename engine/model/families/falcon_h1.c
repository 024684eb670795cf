/* SPDX-License-Identifier: Apache-2.0 */
/* falcon_h1 - Falcon-H1: each layer has Mamba 2 beside attention, of the same input; branches have
 * multipliers. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                     W_EMBED,         {D_VOCAB, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                W_LM_HEAD,       {D_VOCAB, D_HIDDEN},    SHARD_ROWS, WHEN_UNTIED},
    {"model.final_layernorm.weight",                  W_FINAL_NORM,    {D_HIDDEN},             SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",        W_ATTN_NORM,     {D_HIDDEN},             SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mamba.in_proj.weight",          W_MIX_IN,        {D_MIX_IN, D_HIDDEN},   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.in_proj.bias",            W_MIX_IN_BIAS,   {D_MIX_IN},             SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.mamba.conv1d.weight",           W_CONV,          {D_CONV, D_CONV_WIDTH}, SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.conv1d.bias",             W_CONV_BIAS,     {D_CONV},               SHARD_NONE, WHEN_CONV_BIAS},
    {"model.layers.%u.mamba.A_log",                   W_MIX_RATE,      {D_VALUE_HEADS},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.dt_bias",                 W_MIX_RATE_BIAS, {D_VALUE_HEADS},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.D",                       W_MIX_SKIP,      {D_VALUE_HEADS},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.norm.weight",             W_MIX_NORM,      {D_MIX_OUT},            SHARD_NONE, WHEN_MIX_NORM},
    {"model.layers.%u.mamba.out_proj.weight",         W_MIX_OUT,       {D_HIDDEN, D_MIX_OUT},  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.q_proj.weight",       W_Q,             {D_Q, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",       W_K,             {D_KV, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",       W_V,             {D_KV, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",       W_O,             {D_HIDDEN, D_Q},        SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.pre_ff_layernorm.weight",       W_MLP_NORM,      {D_HIDDEN},             SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.gate_proj.weight", W_GATE,          {D_INTER, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.up_proj.weight",   W_UP,            {D_INTER, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.down_proj.weight", W_DOWN,          {D_HIDDEN, D_INTER},    SHARD_COLS, WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_falcon_h1 = {
    .name = "FalconH1ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.embedding = ARCH_EMBEDDING_CONFIG, .scales = true},
};
