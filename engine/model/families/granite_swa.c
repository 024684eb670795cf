/* SPDX-License-Identifier: Apache-2.0 */
/* granite_swa - Granite with windows in most layers, which have a rope of their own, and a sink a
 * head. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                       W_EMBED,      {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                  W_LM_HEAD,    {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                               W_FINAL_NORM, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",          W_ATTN_NORM,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",         W_Q,          {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",         W_K,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",         W_V,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",         W_O,          {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",           W_Q_BIAS,     {D_Q},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",           W_K_BIAS,     {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",           W_V_BIAS,     {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",           W_O_BIAS,     {D_HIDDEN},          SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.sinks",                 W_SINKS,      {D_HEADS},           SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight", W_MLP_NORM,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",            W_GATE,       {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",              W_UP,         {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",            W_DOWN,       {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.bias",              W_GATE_BIAS,  {D_INTER},           SHARD_ROWS, WHEN_MLP_BIAS},
    {"model.layers.%u.mlp.up_proj.bias",                W_UP_BIAS,    {D_INTER},           SHARD_ROWS, WHEN_MLP_BIAS},
    {"model.layers.%u.mlp.down_proj.bias",              W_DOWN_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_MLP_BIAS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",   W_IGNORE,     {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_granite_swa = {
    .name = "GraniteSWAForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .embedding = ARCH_EMBEDDING_CONFIG,
            .windows = true,
            .no_rope = true,
            .local_rope = true,
            .sinks = true,
            .scales = true,
        },
};
