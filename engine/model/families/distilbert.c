/* SPDX-License-Identifier: Apache-2.0 */
/* distilbert - DistilBERT: BERT without types of tokens. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"distilbert.embeddings.word_embeddings.weight",             W_EMBED,               {D_VOCAB, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.embeddings.position_embeddings.weight",         W_POSITIONS,           {D_POSITIONS, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.embeddings.LayerNorm.weight",                   W_EMBED_NORM,          {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.embeddings.LayerNorm.bias",                     W_EMBED_NORM_BIAS,     {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.q_lin.weight",   W_Q,                   {D_Q, D_HIDDEN},         SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.q_lin.bias",     W_Q_BIAS,              {D_Q},                   SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.k_lin.weight",   W_K,                   {D_KV, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.k_lin.bias",     W_K_BIAS,              {D_KV},                  SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.v_lin.weight",   W_V,                   {D_KV, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.v_lin.bias",     W_V_BIAS,              {D_KV},                  SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.out_lin.weight", W_O,                   {D_HIDDEN, D_Q},         SHARD_COLS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.attention.out_lin.bias",   W_O_BIAS,              {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.sa_layer_norm.weight",     W_ATTN_POST_NORM,      {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.sa_layer_norm.bias",       W_ATTN_POST_NORM_BIAS, {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.ffn.lin1.weight",          W_UP,                  {D_INTER, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.ffn.lin1.bias",            W_UP_BIAS,             {D_INTER},               SHARD_ROWS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.ffn.lin2.weight",          W_DOWN,                {D_HIDDEN, D_INTER},     SHARD_COLS, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.ffn.lin2.bias",            W_DOWN_BIAS,           {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.output_layer_norm.weight", W_MLP_POST_NORM,       {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"distilbert.transformer.layer.%u.output_layer_norm.bias",   W_MLP_POST_NORM_BIAS,  {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"vocab_transform.weight",                                   W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"vocab_transform.bias",                                     W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"vocab_layer_norm.weight",                                  W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"vocab_layer_norm.bias",                                    W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"vocab_projector.weight",                                   W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"vocab_projector.bias",                                     W_IGNORE,              {D_NONE},                SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_distilbert = {
    .name = "DistilBertModel",
    .prefix = "distilbert.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .norms = ARCH_NORMS_SUM,
            .positions = ARCH_LEARNED,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU | 1u << ARCH_SILU,
            .bidirectional = true,
        },
    .head =
        {
            {"pre_classifier", POOLING_ACT_RELU, ARCH_HEAD_BIAS, NULL},
            {"classifier", POOLING_ACT_NONE, ARCH_HEAD_BIAS, NULL},
        },
};
