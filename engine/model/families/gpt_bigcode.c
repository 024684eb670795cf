/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_bigcode - StarCoder, SantaCoder: GPT-2 with one head of K and V, or with q, k and v by
 * heads. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.wte.weight",              W_EMBED,           {D_VOCAB, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.wpe.weight",              W_POSITIONS,       {D_POSITIONS, D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"lm_head.weight",                      W_LM_HEAD,         {D_VOCAB, D_HIDDEN},     SHARD_ROWS, WHEN_UNTIED},
    {"transformer.ln_f.weight",             W_FINAL_NORM,      {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.ln_f.bias",               W_FINAL_NORM_BIAS, {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_1.weight",        W_ATTN_NORM,       {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_1.bias",          W_ATTN_NORM_BIAS,  {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.attn.c_attn.weight", W_QKV_HEADS,       {D_QKV, D_HIDDEN},       SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.c_attn.bias",   W_QKV_HEADS_BIAS,  {D_QKV},                 SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.c_proj.weight", W_O,               {D_HIDDEN, D_Q},         SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.c_proj.bias",   W_O_BIAS,          {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_2.weight",        W_MLP_NORM,        {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_2.bias",          W_MLP_NORM_BIAS,   {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_fc.weight",    W_UP,              {D_INTER, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_proj.weight",  W_DOWN,            {D_HIDDEN, D_INTER},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_fc.bias",      W_UP_BIAS,         {D_INTER},               SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_proj.bias",    W_DOWN_BIAS,       {D_HIDDEN},              SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.attn.bias",          W_IGNORE,          {D_NONE},                SHARD_NONE, WHEN_NEVER},
    {"transformer.h.%u.attn.masked_bias",   W_IGNORE,          {D_NONE},                SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_gpt_bigcode = {
    .name = "GPTBigCodeForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .positions = ARCH_LEARNED,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU | 1u << ARCH_SILU | 1u << ARCH_RELU,
        },
};
