/* SPDX-License-Identifier: Apache-2.0 */
/* phi - Phi-1, 1.5 and 2: both branches read the output of one LayerNorm, every matrix has a bias,
 * that of the logits too, and part of a head is rotated. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",               W_EMBED,           {D_VOCAB, D_HIDDEN}, SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                          W_LM_HEAD,         {D_VOCAB, D_HIDDEN}, SHARD_ROWS,  WHEN_UNTIED},
    {"lm_head.bias",                            W_LM_HEAD_BIAS,    {D_VOCAB},           SHARD_ROWS,  WHEN_ALWAYS},
    {"model.final_layernorm.weight",            W_FINAL_NORM,      {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.final_layernorm.bias",              W_FINAL_NORM_BIAS, {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",  W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.bias",    W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight", W_Q,               {D_Q, D_HIDDEN},     SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight", W_K,               {D_KV, D_HIDDEN},    SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight", W_V,               {D_KV, D_HIDDEN},    SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.dense.weight",  W_O,               {D_HIDDEN, D_Q},     SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",   W_Q_BIAS,          {D_Q},               SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.bias",   W_K_BIAS,          {D_KV},              SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.bias",   W_V_BIAS,          {D_KV},              SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.dense.bias",    W_O_BIAS,          {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc1.weight",          W_UP,              {D_INTER, D_HIDDEN}, SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc1.bias",            W_UP_BIAS,         {D_INTER},           SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc2.weight",          W_DOWN,            {D_HIDDEN, D_INTER}, SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc2.bias",            W_DOWN_BIAS,       {D_HIDDEN},          SHARD_NONE,  WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_phi = {
    .name = "PhiForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_SHARED_NORM,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU,
        },
};
