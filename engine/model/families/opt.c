/* SPDX-License-Identifier: Apache-2.0 */
/* opt - OPT: learned positions behind two rows, LayerNorm, relu. The smallest but one has norms of
 * sums, and an embedding of fewer columns than the stream. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.decoder.embed_tokens.weight",                   W_EMBED,               {D_VOCAB, D_EMBED},        SHARD_ROWS, WHEN_ALWAYS},
    {"model.decoder.embed_positions.weight",                W_POSITIONS,           {D_POSITIONS_2, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"model.decoder.project_in.weight",                     W_PROJECT_IN,          {D_HIDDEN, D_EMBED},       SHARD_ROWS, WHEN_PROJECTED},
    {"model.decoder.project_out.weight",                    W_PROJECT_OUT,         {D_EMBED, D_HIDDEN},       SHARD_ROWS, WHEN_PROJECTED},
    {"lm_head.weight",                                      W_LM_HEAD,             {D_VOCAB, D_EMBED},        SHARD_ROWS, WHEN_UNTIED},
    {"model.decoder.final_layer_norm.weight",               W_FINAL_NORM,          {D_HIDDEN},                SHARD_NONE, WHEN_FINAL_NORM},
    {"model.decoder.final_layer_norm.bias",                 W_FINAL_NORM_BIAS,     {D_HIDDEN},                SHARD_NONE, WHEN_FINAL_NORM},
    {"model.decoder.layers.%u.self_attn_layer_norm.weight", W_ATTN_NORM,           {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_BEFORE},
    {"model.decoder.layers.%u.self_attn_layer_norm.bias",   W_ATTN_NORM_BIAS,      {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_BEFORE},
    {"model.decoder.layers.%u.self_attn_layer_norm.weight", W_ATTN_POST_NORM,      {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_SUM},
    {"model.decoder.layers.%u.self_attn_layer_norm.bias",   W_ATTN_POST_NORM_BIAS, {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_SUM},
    {"model.decoder.layers.%u.self_attn.q_proj.weight",     W_Q,                   {D_Q, D_HIDDEN},           SHARD_ROWS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.self_attn.k_proj.weight",     W_K,                   {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.self_attn.v_proj.weight",     W_V,                   {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.self_attn.out_proj.weight",   W_O,                   {D_HIDDEN, D_Q},           SHARD_COLS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.self_attn.q_proj.bias",       W_Q_BIAS,              {D_Q},                     SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.decoder.layers.%u.self_attn.k_proj.bias",       W_K_BIAS,              {D_KV},                    SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.decoder.layers.%u.self_attn.v_proj.bias",       W_V_BIAS,              {D_KV},                    SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.decoder.layers.%u.self_attn.out_proj.bias",     W_O_BIAS,              {D_HIDDEN},                SHARD_NONE, WHEN_OUT_BIAS},
    {"model.decoder.layers.%u.final_layer_norm.weight",     W_MLP_NORM,            {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_BEFORE},
    {"model.decoder.layers.%u.final_layer_norm.bias",       W_MLP_NORM_BIAS,       {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_BEFORE},
    {"model.decoder.layers.%u.final_layer_norm.weight",     W_MLP_POST_NORM,       {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_SUM},
    {"model.decoder.layers.%u.final_layer_norm.bias",       W_MLP_POST_NORM_BIAS,  {D_HIDDEN},                SHARD_NONE, WHEN_NORMS_SUM},
    {"model.decoder.layers.%u.fc1.weight",                  W_UP,                  {D_INTER, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.fc2.weight",                  W_DOWN,                {D_HIDDEN, D_INTER},       SHARD_COLS, WHEN_ALWAYS},
    {"model.decoder.layers.%u.fc1.bias",                    W_UP_BIAS,             {D_INTER},                 SHARD_ROWS, WHEN_MLP_BIAS},
    {"model.decoder.layers.%u.fc2.bias",                    W_DOWN_BIAS,           {D_HIDDEN},                SHARD_NONE, WHEN_MLP_BIAS},
};
/* clang-format on */

const struct arch arch_opt = {
    .name = "OPTForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .norms = ARCH_NORMS_CONFIG,
            .positions = ARCH_LEARNED,
            .first_position = 2,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU,
        },
};
