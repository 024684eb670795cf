/* SPDX-License-Identifier: Apache-2.0 */
/* mistral - Llama without biases, with a sliding window over all layers (or none: sliding_window
 * null). Families with its tensors: cwm, ministral, ministral3. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                            W_EMBED,      {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                                       W_LM_HEAD,    {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_UNTIED},
    {"model.norm.weight",                                    W_FINAL_NORM, {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",               W_ATTN_NORM,  {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",              W_Q,          {D_Q, D_HIDDEN},       SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",              W_K,          {D_KV, D_HIDDEN},      SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",              W_V,          {D_KV, D_HIDDEN},      SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",              W_O,          {D_HIDDEN, D_Q},       SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",      W_MLP_NORM,   {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",                 W_GATE,       {D_INTER, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",                   W_UP,         {D_INTER, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",                 W_DOWN,       {D_HIDDEN, D_INTER},   SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",        W_IGNORE,     {D_NONE},              SHARD_NONE,  WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_mistral = {
    .name = "MistralForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.windows = true},
};

/* Code World Model: llama without biases, windows in three of four layers. */
const struct arch arch_cwm = {
    .name = "CwmForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.windows = true},
};

/* Ministral 8B: mistral whose layers have windows or none, as the config says. */
const struct arch arch_ministral = {
    .name = "MinistralForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.windows = true},
};

/* Ministral 3: mistral whose q grows with the position, beyond the length of the training's
 * first part. */
const struct arch arch_ministral3 = {
    .name = "Ministral3ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .windows = true,
            .query_growth = ARCH_QUERY_GROWTH_ALL,
        },
};
