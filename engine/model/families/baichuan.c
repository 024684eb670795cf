/* SPDX-License-Identifier: Apache-2.0 */
/* baichuan - Baichuan and Baichuan 2: llama with q, k and v in one tensor; the 13B has slopes in
 * place of a rope, and in the second the head's rows have the length 1.
 * Source: arXiv:2309.10305. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                       W_EMBED,      {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                  W_LM_HEAD,    {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                               W_FINAL_NORM, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",          W_ATTN_NORM,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.W_pack.weight",         W_QKV,        {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",         W_O,          {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight", W_MLP_NORM,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",            W_GATE,       {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",              W_UP,         {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",            W_DOWN,       {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",   W_IGNORE,     {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_baichuan = {
    .name = "BaichuanForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.positions = ARCH_ROPE_OR_ALIBI},
};
