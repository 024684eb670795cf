/* SPDX-License-Identifier: Apache-2.0 */
/* falcon_mamba - Falcon Mamba: mamba with norms, without weights, of steps, B and C. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"backbone.embeddings.weight",               W_EMBED,         {D_VOCAB, D_HIDDEN},      SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                           W_LM_HEAD,       {D_VOCAB, D_HIDDEN},      SHARD_ROWS, WHEN_UNTIED},
    {"backbone.norm_f.weight",                   W_FINAL_NORM,    {D_HIDDEN},               SHARD_NONE, WHEN_ALWAYS},
    {"backbone.layers.%u.norm.weight",           W_ATTN_NORM,     {D_HIDDEN},               SHARD_NONE, WHEN_ALWAYS},
    {"backbone.layers.%u.mixer.in_proj.weight",  W_MIX_IN,        {D_MIX_IN, D_HIDDEN},     SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.in_proj.bias",    W_MIX_IN_BIAS,   {D_MIX_IN},               SHARD_NONE, WHEN_MIX_BIAS},
    {"backbone.layers.%u.mixer.conv1d.weight",   W_CONV,          {D_CONV, D_CONV_WIDTH},   SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.conv1d.bias",     W_CONV_BIAS,     {D_CONV},                 SHARD_NONE, WHEN_CONV_BIAS},
    {"backbone.layers.%u.mixer.x_proj.weight",   W_MIX_X,         {D_MIX_X, D_MIX_OUT},     SHARD_NONE, WHEN_MIXER},
    {ARCH_ONES, W_STEP_NORM, {D_STEP_RANK}, SHARD_NONE, WHEN_MIXER},
    {ARCH_ONES, W_B_NORM, {D_STATE}, SHARD_NONE, WHEN_MIXER},
    {ARCH_ONES, W_C_NORM, {D_STATE}, SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.dt_proj.weight",  W_MIX_STEP,      {D_MIX_OUT, D_STEP_RANK}, SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.dt_proj.bias",    W_MIX_RATE_BIAS, {D_MIX_OUT},              SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.A_log",           W_MIX_RATE,      {D_MIX_OUT, D_STATE},     SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.D",               W_MIX_SKIP,      {D_MIX_OUT},              SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.out_proj.weight", W_MIX_OUT,       {D_HIDDEN, D_MIX_OUT},    SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.out_proj.bias",   W_MIX_OUT_BIAS,  {D_HIDDEN},               SHARD_NONE, WHEN_MIX_BIAS},
};
/* clang-format on */

const struct arch arch_falcon_mamba = {
    .name = "FalconMambaForCausalLM",
    .prefix = "backbone.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.positions = ARCH_NO_POSITIONS},
};
