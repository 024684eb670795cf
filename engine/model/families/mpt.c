/* SPDX-License-Identifier: Apache-2.0 */
/* mpt - MPT: ALiBi, LayerNorm without biases, an MLP without a gate, q, k and v that may be
 * limited. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.wte.weight",                     W_EMBED,      {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                             W_LM_HEAD,    {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"transformer.norm_f.weight",                  W_FINAL_NORM, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_1.weight",        W_ATTN_NORM,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.attn.Wqkv.weight",     W_QKV,        {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.blocks.%u.attn.out_proj.weight", W_O,          {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_2.weight",        W_MLP_NORM,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.ffn.up_proj.weight",   W_UP,         {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.blocks.%u.ffn.down_proj.weight", W_DOWN,       {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_mpt = {
    .name = "MptForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .positions = ARCH_ALIBI,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU,
            .clips = true,
            .scales = true,
        },
};
