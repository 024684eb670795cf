/* SPDX-License-Identifier: Apache-2.0 */
/* lfm2 - LFM2: most layers have a gated short convolution in place of attention, the others norms
 * of heads.
 * lfm2_moe - the same with experts behind the first layers, chosen with a bias that does not
 * weigh. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                         W_EMBED,        {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                    W_LM_HEAD,      {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_UNTIED},
    {"model.embedding_norm.weight",                       W_FINAL_NORM,   {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.operator_norm.weight",              W_ATTN_NORM,    {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.conv.in_proj.weight",               W_MIX_IN,       {D_MIX_IN, D_HIDDEN},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.conv.in_proj.bias",                 W_MIX_IN_BIAS,  {D_MIX_IN},                 SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.conv.conv.weight",                  W_CONV,         {D_CONV, D_CONV_WIDTH},     SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.conv.conv.bias",                    W_CONV_BIAS,    {D_CONV},                   SHARD_NONE, WHEN_CONV_BIAS},
    {"model.layers.%u.conv.out_proj.weight",              W_MIX_OUT,      {D_HIDDEN, D_MIX_OUT},      SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.conv.out_proj.bias",                W_MIX_OUT_BIAS, {D_HIDDEN},                 SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.self_attn.q_proj.weight",           W_Q,            {D_Q, D_HIDDEN},            SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",           W_K,            {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",           W_V,            {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.out_proj.weight",         W_O,            {D_HIDDEN, D_Q},            SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.q_layernorm.weight",      W_Q_NORM,       {D_HEAD},                   SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_layernorm.weight",      W_K_NORM,       {D_HEAD},                   SHARD_NONE, WHEN_ATTENTION},
    {"model.layers.%u.ffn_norm.weight",                   W_MLP_NORM,     {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.w1.weight",            W_GATE,         {D_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.w3.weight",            W_UP,           {D_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.w2.weight",            W_DOWN,         {D_HIDDEN, D_INTER},        SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.gate.weight",          W_ROUTER,       {D_EXPERTS, D_HIDDEN},      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.expert_bias",          W_ROUTER_BIAS,  {D_EXPERTS},                SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.w1.weight", W_EXPERT_GATE,  {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.w3.weight", W_EXPERT_UP,    {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.w2.weight", W_EXPERT_DOWN,  {D_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_EXPERTS},
};
/* clang-format on */

const struct arch arch_lfm2 = {
    .name = "Lfm2ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.qk_norm = ARCH_QK_NORM_HEADS},
};

const struct arch arch_lfm2_moe = {
    .name = "Lfm2MoeForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.qk_norm = ARCH_QK_NORM_HEADS, .route = ARCH_ROUTE_SIGMOID},
};
