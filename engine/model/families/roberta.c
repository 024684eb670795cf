/* SPDX-License-Identifier: Apache-2.0 */
/* roberta - RoBERTa: BERT with positions behind two rows, and a head of its own. A family with
 * its tensors: xlm_roberta. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"roberta.embeddings.word_embeddings.weight",                  W_EMBED,               {D_VOCAB, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.embeddings.position_embeddings.weight",              W_POSITIONS,           {D_POSITIONS_2, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"roberta.embeddings.token_type_embeddings.weight",            W_TYPES,               {D_TYPES, D_HIDDEN},       SHARD_NONE, WHEN_ALWAYS},
    {"roberta.embeddings.LayerNorm.weight",                        W_EMBED_NORM,          {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.embeddings.LayerNorm.bias",                          W_EMBED_NORM_BIAS,     {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.query.weight",       W_Q,                   {D_Q, D_HIDDEN},           SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.query.bias",         W_Q_BIAS,              {D_Q},                     SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.key.weight",         W_K,                   {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.key.bias",           W_K_BIAS,              {D_KV},                    SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.value.weight",       W_V,                   {D_KV, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.self.value.bias",         W_V_BIAS,              {D_KV},                    SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.output.dense.weight",     W_O,                   {D_HIDDEN, D_Q},           SHARD_COLS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.output.dense.bias",       W_O_BIAS,              {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.output.LayerNorm.weight", W_ATTN_POST_NORM,      {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.attention.output.LayerNorm.bias",   W_ATTN_POST_NORM_BIAS, {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.intermediate.dense.weight",         W_UP,                  {D_INTER, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.intermediate.dense.bias",           W_UP_BIAS,             {D_INTER},                 SHARD_ROWS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.output.dense.weight",               W_DOWN,                {D_HIDDEN, D_INTER},       SHARD_COLS, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.output.dense.bias",                 W_DOWN_BIAS,           {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.output.LayerNorm.weight",           W_MLP_POST_NORM,       {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.encoder.layer.%u.output.LayerNorm.bias",             W_MLP_POST_NORM_BIAS,  {D_HIDDEN},                SHARD_NONE, WHEN_ALWAYS},
    {"roberta.embeddings.position_ids",                            W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"roberta.pooler.dense.weight",                                W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"roberta.pooler.dense.bias",                                  W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.bias",                                               W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.dense.weight",                                       W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.dense.bias",                                         W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.layer_norm.weight",                                  W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.layer_norm.bias",                                    W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.decoder.weight",                                     W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
    {"lm_head.decoder.bias",                                       W_IGNORE,              {D_NONE},                  SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_roberta = {
    .name = "RobertaModel",
    .prefix = "roberta.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .norms = ARCH_NORMS_SUM,
            .positions = ARCH_LEARNED,
            .first_position = 2,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU | 1u << ARCH_SILU,
            .bidirectional = true,
        },
    .head =
        {
            {"classifier.dense", POOLING_ACT_TANH, ARCH_HEAD_BIAS, NULL},
            {"classifier.out_proj", POOLING_ACT_NONE, ARCH_HEAD_BIAS, NULL},
        },
};

/* XLM-RoBERTa: BERT with positions behind two rows, and a head of its own. */
const struct arch arch_xlm_roberta = {
    .name = "XLMRobertaModel",
    .prefix = "roberta.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .norms = ARCH_NORMS_SUM,
            .positions = ARCH_LEARNED,
            .first_position = 2,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU | 1u << ARCH_SILU,
            .bidirectional = true,
        },
    .head =
        {
            {"classifier.dense", POOLING_ACT_TANH, ARCH_HEAD_BIAS, NULL},
            {"classifier.out_proj", POOLING_ACT_NONE, ARCH_HEAD_BIAS, NULL},
        },
};
