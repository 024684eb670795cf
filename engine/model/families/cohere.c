/* SPDX-License-Identifier: Apache-2.0 */
/* cohere - Command R: both branches read one LayerNorm of x, interleaved rope, a multiplier of
 * the logits. A family with its tensors: cohere2. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                     W_EMBED,      {D_VOCAB, D_HIDDEN},  SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                W_LM_HEAD,    {D_VOCAB, D_HIDDEN},  SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                             W_FINAL_NORM, {D_HIDDEN},           SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",        W_ATTN_NORM,  {D_HIDDEN},           SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",       W_Q,          {D_Q, D_HIDDEN},      SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",       W_K,          {D_KV, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",       W_V,          {D_KV, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",       W_O,          {D_HIDDEN, D_Q},      SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",         W_Q_BIAS,     {D_Q},                SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",         W_K_BIAS,     {D_KV},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",         W_V_BIAS,     {D_KV},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",         W_O_BIAS,     {D_HIDDEN},           SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.q_norm.weight",       W_Q_NORM,     {D_HEADS, D_HEAD},    SHARD_ROWS, WHEN_QK_NORM},
    {"model.layers.%u.self_attn.k_norm.weight",       W_K_NORM,     {D_KV_HEADS, D_HEAD}, SHARD_ROWS, WHEN_QK_NORM},
    {"model.layers.%u.mlp.gate_proj.weight",          W_GATE,       {D_INTER, D_HIDDEN},  SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",            W_UP,         {D_INTER, D_HIDDEN},  SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",          W_DOWN,       {D_HIDDEN, D_INTER},  SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq", W_IGNORE,     {D_NONE},             SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_cohere = {
    .name = "CohereForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_SHARED_NORM,
            .positions = ARCH_ROPE_INTERLEAVED,
            .qk_norm = ARCH_QK_NORM_APART,
            .scales = true,
        },
};

/* Command R7B and A: as Command R, with windows; layers without one have no rope. */
const struct arch arch_cohere2 = {
    .name = "Cohere2ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_SHARED_NORM,
            .positions = ARCH_ROPE_INTERLEAVED,
            .windows = true,
            .no_rope = true,
            .scales = true,
        },
};
