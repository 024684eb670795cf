/* SPDX-License-Identifier: Apache-2.0 */
/* jamba - Jamba: most layers have Mamba in place of attention, with norms of steps, B and C; some
 * have experts. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                                W_EMBED,         {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,       {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_UNTIED},
    {"model.final_layernorm.weight",                             W_FINAL_NORM,    {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                   W_ATTN_NORM,     {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mamba.in_proj.weight",                     W_MIX_IN,        {D_MIX_IN, D_HIDDEN},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.in_proj.bias",                       W_MIX_IN_BIAS,   {D_MIX_IN},                 SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.mamba.conv1d.weight",                      W_CONV,          {D_CONV, D_CONV_WIDTH},     SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.conv1d.bias",                        W_CONV_BIAS,     {D_CONV},                   SHARD_NONE, WHEN_CONV_BIAS},
    {"model.layers.%u.mamba.x_proj.weight",                      W_MIX_X,         {D_MIX_X, D_MIX_OUT},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.dt_layernorm.weight",                W_STEP_NORM,     {D_STEP_RANK},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.b_layernorm.weight",                 W_B_NORM,        {D_STATE},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.c_layernorm.weight",                 W_C_NORM,        {D_STATE},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.dt_proj.weight",                     W_MIX_STEP,      {D_MIX_OUT, D_STEP_RANK},   SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.dt_proj.bias",                       W_MIX_RATE_BIAS, {D_MIX_OUT},                SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.A_log",                              W_MIX_RATE,      {D_MIX_OUT, D_STATE},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.D",                                  W_MIX_SKIP,      {D_MIX_OUT},                SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.out_proj.weight",                    W_MIX_OUT,       {D_HIDDEN, D_MIX_OUT},      SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.out_proj.bias",                      W_MIX_OUT_BIAS,  {D_HIDDEN},                 SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.self_attn.q_proj.weight",                  W_Q,             {D_Q, D_HIDDEN},            SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",                  W_K,             {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",                  W_V,             {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.o_proj.weight",                  W_O,             {D_HIDDEN, D_Q},            SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.pre_ff_layernorm.weight",                  W_MLP_NORM,      {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.gate_proj.weight",            W_GATE,          {D_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.up_proj.weight",              W_UP,            {D_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.down_proj.weight",            W_DOWN,          {D_HIDDEN, D_INTER},        SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.feed_forward.router.weight",               W_ROUTER,        {D_EXPERTS, D_HIDDEN},      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.gate_proj.weight", W_EXPERT_GATE,   {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.up_proj.weight",   W_EXPERT_UP,     {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.feed_forward.experts.%u.down_proj.weight", W_EXPERT_DOWN,   {D_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_EXPERTS},
};
/* clang-format on */

const struct arch arch_jamba = {
    .name = "JambaForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.positions = ARCH_NO_POSITIONS},
};
