/* SPDX-License-Identifier: Apache-2.0 */
/* codegen - CodeGen: GPT-J whose q, v and k are in one tensor, by fourths of the heads. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.wte.weight",                W_EMBED,           {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                        W_LM_HEAD,         {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"lm_head.bias",                          W_LM_HEAD_BIAS,    {D_VOCAB},           SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.ln_f.weight",               W_FINAL_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.ln_f.bias",                 W_FINAL_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_1.weight",          W_ATTN_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_1.bias",            W_ATTN_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.attn.qkv_proj.weight", W_QVK_FOURTHS,     {D_QKV, D_HIDDEN},   SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.out_proj.weight", W_O,               {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.fc_in.weight",     W_UP,              {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.fc_out.weight",    W_DOWN,            {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.fc_in.bias",       W_UP_BIAS,         {D_INTER},           SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.fc_out.bias",      W_DOWN_BIAS,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.attn.causal_mask",     W_IGNORE,          {D_NONE},            SHARD_NONE, WHEN_NEVER},
    {"transformer.h.%u.attn.bias",            W_IGNORE,          {D_NONE},            SHARD_NONE, WHEN_NEVER},
    {"transformer.h.%u.attn.masked_bias",     W_IGNORE,          {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_codegen = {
    .name = "CodeGenForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_SHARED_NORM,
            .positions = ARCH_ROPE_INTERLEAVED,
            .mlp = ARCH_MLP_PLAIN,
            .activations = ARCH_ACTS_GELU,
        },
};
