/* SPDX-License-Identifier: Apache-2.0 */
/* internlm2 - InternLM 2: llama under names of its own, q, k and v by KV heads in one tensor. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.tok_embeddings.weight",                   W_EMBED,          {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"output.weight",                                 W_LM_HEAD,        {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                             W_FINAL_NORM,     {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.attention_norm.weight",         W_ATTN_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.attention.wqkv.weight",         W_QKV_HEADS,      {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.attention.wo.weight",           W_O,              {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.attention.wqkv.bias",           W_QKV_HEADS_BIAS, {D_QKV},             SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.attention.wo.bias",             W_O_BIAS,         {D_HIDDEN},          SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.ffn_norm.weight",               W_MLP_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.w1.weight",        W_GATE,           {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.w3.weight",        W_UP,             {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.feed_forward.w2.weight",        W_DOWN,           {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.attention.rotary_emb.inv_freq", W_IGNORE,         {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_internlm2 = {
    .name = "InternLM2ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};
