/* SPDX-License-Identifier: Apache-2.0 */
/* falcon - Falcon: LayerNorm, branches side by side with one norm or two, or one after the other;
 * rope or ALiBi. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.word_embeddings.weight",                     W_EMBED,           {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                         W_LM_HEAD,         {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"transformer.ln_f.weight",                                W_FINAL_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.ln_f.bias",                                  W_FINAL_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.input_layernorm.weight",                W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_NOT_TWO_NORMS},
    {"transformer.h.%u.input_layernorm.bias",                  W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_NOT_TWO_NORMS},
    {"transformer.h.%u.ln_attn.weight",                        W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_TWO_NORMS},
    {"transformer.h.%u.ln_attn.bias",                          W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_TWO_NORMS},
    {"transformer.h.%u.self_attention.query_key_value.weight", W_QKV_HEADS,       {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.query_key_value.bias",   W_QKV_HEADS_BIAS,  {D_QKV},             SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"transformer.h.%u.self_attention.dense.weight",           W_O,               {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.self_attention.dense.bias",             W_O_BIAS,          {D_HIDDEN},          SHARD_NONE, WHEN_OUT_BIAS},
    {"transformer.h.%u.post_attention_layernorm.weight",       W_MLP_NORM,        {D_HIDDEN},          SHARD_NONE, WHEN_SEQUENTIAL},
    {"transformer.h.%u.post_attention_layernorm.bias",         W_MLP_NORM_BIAS,   {D_HIDDEN},          SHARD_NONE, WHEN_SEQUENTIAL},
    {"transformer.h.%u.ln_mlp.weight",                         W_MLP_NORM,        {D_HIDDEN},          SHARD_NONE, WHEN_TWO_NORMS},
    {"transformer.h.%u.ln_mlp.bias",                           W_MLP_NORM_BIAS,   {D_HIDDEN},          SHARD_NONE, WHEN_TWO_NORMS},
    {"transformer.h.%u.mlp.dense_h_to_4h.weight",              W_UP,              {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_4h_to_h.weight",              W_DOWN,            {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.dense_h_to_4h.bias",                W_UP_BIAS,         {D_INTER},           SHARD_ROWS, WHEN_MLP_BIAS},
    {"transformer.h.%u.mlp.dense_4h_to_h.bias",                W_DOWN_BIAS,       {D_HIDDEN},          SHARD_NONE, WHEN_MLP_BIAS},
    {"transformer.h.%u.self_attention.rotary_emb.inv_freq",    W_IGNORE,          {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_falcon = {
    .name = "FalconForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_CONFIG,
            .positions = ARCH_ROPE_OR_ALIBI,
            .alibi_scaled = true,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU,
        },
};
