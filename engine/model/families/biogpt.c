/* SPDX-License-Identifier: Apache-2.0 */
/* biogpt - BioGPT: OPT's layers with an embedding that is scaled. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"biogpt.embed_tokens.weight",                   W_EMBED,           {D_VOCAB, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.embed_positions.weight",                W_POSITIONS,       {D_POSITIONS_2, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"output_projection.weight",                     W_LM_HEAD,         {D_VOCAB, D_HIDDEN},       SHARD_ROWS, WHEN_UNTIED},
    {"biogpt.layer_norm.weight",                     W_FINAL_NORM,      {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layer_norm.bias",                       W_FINAL_NORM_BIAS, {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn_layer_norm.weight", W_ATTN_NORM,       {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn_layer_norm.bias",   W_ATTN_NORM_BIAS,  {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.q_proj.weight",     W_Q,               {D_Q, D_HIDDEN},           SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.q_proj.bias",       W_Q_BIAS,          {D_Q},                     SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.k_proj.weight",     W_K,               {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.k_proj.bias",       W_K_BIAS,          {D_KV},                    SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.v_proj.weight",     W_V,               {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.v_proj.bias",       W_V_BIAS,          {D_KV},                    SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.out_proj.weight",   W_O,               {D_HIDDEN, D_Q},           SHARD_COLS, WHEN_ALWAYS},
    {"biogpt.layers.%u.self_attn.out_proj.bias",     W_O_BIAS,          {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.final_layer_norm.weight",     W_MLP_NORM,        {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.final_layer_norm.bias",       W_MLP_NORM_BIAS,   {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"biogpt.layers.%u.fc1.weight",                  W_UP,              {D_INTER, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.fc1.bias",                    W_UP_BIAS,         {D_INTER},                 SHARD_ROWS, WHEN_ALWAYS},
    {"biogpt.layers.%u.fc2.weight",                  W_DOWN,            {D_HIDDEN, D_INTER},       SHARD_COLS, WHEN_ALWAYS},
    {"biogpt.layers.%u.fc2.bias",                    W_DOWN_BIAS,       {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_biogpt = {
    .name = "BioGptForCausalLM",
    .prefix = "biogpt.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .positions = ARCH_LEARNED,
            .first_position = 2,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_SILU | 1u << ARCH_RELU,
            .embedding = ARCH_EMBEDDING_CONFIG,
        },
};
