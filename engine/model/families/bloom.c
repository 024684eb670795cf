/* SPDX-License-Identifier: Apache-2.0 */
/* bloom - BLOOM: ALiBi, LayerNorm, a norm of the embedding, q, k and v by heads in one tensor. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.word_embeddings.weight",                     W_EMBED,           {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.word_embeddings_layernorm.weight",           W_EMBED_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.word_embeddings_layernorm.bias",             W_EMBED_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"lm_head.weight",                                         W_LM_HEAD,         {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"transformer.ln_f.weight",                                W_FINAL_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.ln_f.bias",                                  W_FINAL_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.input_layernorm.weight",                W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.input_layernorm.bias",                  W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.query_key_value.weight", W_QKV_HEADS,       {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.query_key_value.bias",   W_QKV_HEADS_BIAS,  {D_QKV},             SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.dense.weight",           W_O,               {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.dense.bias",             W_O_BIAS,          {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.post_attention_layernorm.weight",       W_MLP_NORM,        {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.post_attention_layernorm.bias",         W_MLP_NORM_BIAS,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_h_to_4h.weight",              W_UP,              {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_4h_to_h.weight",              W_DOWN,            {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_h_to_4h.bias",                W_UP_BIAS,         {D_INTER},           SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_4h_to_h.bias",                W_DOWN_BIAS,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_bloom = {
    .name = "BloomForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .positions = ARCH_ALIBI,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU,
        },
};
