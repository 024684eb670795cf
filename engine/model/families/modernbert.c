/* SPDX-License-Identifier: Apache-2.0 */
/* modernbert - ModernBERT: attention both ways, in windows but for each third layer, with ropes of
 * their own; a gated MLP; the first layer reads what the embedding's norm has made. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embeddings.tok_embeddings.weight", W_EMBED,      {D_VOCAB, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"model.embeddings.norm.weight",           W_EMBED_NORM, {D_HIDDEN},            SHARD_NONE, WHEN_ALWAYS},
    {"model.final_norm.weight",                W_FINAL_NORM, {D_HIDDEN},            SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.attn_norm.weight",       W_ATTN_NORM,  {D_HIDDEN},            SHARD_NONE, WHEN_BEHIND},
    {"model.layers.%u.attn.Wqkv.weight",       W_QKV,        {D_QKV, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.attn.Wqkv.bias",         W_QKV_BIAS,   {D_QKV},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.attn.Wo.weight",         W_O,          {D_HIDDEN, D_Q},       SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.attn.Wo.bias",           W_O_BIAS,     {D_HIDDEN},            SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.mlp_norm.weight",        W_MLP_NORM,   {D_HIDDEN},            SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.Wi.weight",          W_GATE_UP,    {D_2_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.Wo.weight",          W_DOWN,       {D_HIDDEN, D_INTER},   SHARD_COLS, WHEN_ALWAYS},
    {"head.dense.weight",                      W_IGNORE,     {D_NONE},              SHARD_NONE, WHEN_NEVER},
    {"head.dense.bias",                        W_IGNORE,     {D_NONE},              SHARD_NONE, WHEN_NEVER},
    {"head.norm.weight",                       W_IGNORE,     {D_NONE},              SHARD_NONE, WHEN_NEVER},
    {"decoder.weight",                         W_IGNORE,     {D_NONE},              SHARD_NONE, WHEN_NEVER},
    {"decoder.bias",                           W_IGNORE,     {D_NONE},              SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_modernbert = {
    .name = "ModernBertModel",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_SILU,
            .windows = true,
            .local_rope = true,
            .bidirectional = true,
            .bare_first = true,
        },
    .head =
        {
            {"head.dense", POOLING_ACT_GELU, ARCH_HEAD_MAY_BIAS, "head.norm"},
            {"classifier", POOLING_ACT_NONE, ARCH_HEAD_BIAS, NULL},
        },
};
