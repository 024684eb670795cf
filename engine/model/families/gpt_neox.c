/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_neox - GPT-NeoX and Pythia: both branches read one x, LayerNorm, an MLP without a gate, part
 * of a head is rotated. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"gpt_neox.embed_in.weight",                            W_EMBED,           {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"embed_out.weight",                                    W_LM_HEAD,         {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_UNTIED},
    {"gpt_neox.final_layer_norm.weight",                    W_FINAL_NORM,      {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.final_layer_norm.bias",                      W_FINAL_NORM_BIAS, {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.input_layernorm.weight",           W_ATTN_NORM,       {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.input_layernorm.bias",             W_ATTN_NORM_BIAS,  {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.attention.query_key_value.weight", W_QKV_HEADS,       {D_QKV, D_HIDDEN},     SHARD_ROWS,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.attention.query_key_value.bias",   W_QKV_HEADS_BIAS,  {D_QKV},               SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"gpt_neox.layers.%u.attention.dense.weight",           W_O,               {D_HIDDEN, D_Q},       SHARD_COLS,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.attention.dense.bias",             W_O_BIAS,          {D_HIDDEN},            SHARD_NONE,  WHEN_OUT_BIAS},
    {"gpt_neox.layers.%u.post_attention_layernorm.weight",  W_MLP_NORM,        {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.post_attention_layernorm.bias",    W_MLP_NORM_BIAS,   {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.mlp.dense_h_to_4h.weight",         W_UP,              {D_INTER, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.mlp.dense_h_to_4h.bias",           W_UP_BIAS,         {D_INTER},             SHARD_ROWS,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.mlp.dense_4h_to_h.weight",         W_DOWN,            {D_HIDDEN, D_INTER},   SHARD_COLS,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.mlp.dense_4h_to_h.bias",           W_DOWN_BIAS,       {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"gpt_neox.layers.%u.attention.bias",                   W_IGNORE,          {D_NONE},              SHARD_NONE,  WHEN_NEVER},
    {"gpt_neox.layers.%u.attention.masked_bias",            W_IGNORE,          {D_NONE},              SHARD_NONE,  WHEN_NEVER},
    {"gpt_neox.layers.%u.attention.rotary_emb.inv_freq",    W_IGNORE,          {D_NONE},              SHARD_NONE,  WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_gpt_neox = {
    .name = "GPTNeoXForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_CONFIG,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU,
        },
};
