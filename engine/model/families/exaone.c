/* SPDX-License-Identifier: Apache-2.0 */
/* exaone - EXAONE 3 and 3.5: llama under names of its own. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.wte.weight",                          W_EMBED,      {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                  W_LM_HEAD,    {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {"transformer.ln_f.weight",                         W_FINAL_NORM, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.ln_1.weight",                    W_ATTN_NORM,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.attn.attention.q_proj.weight",   W_Q,          {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.attention.k_proj.weight",   W_K,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.attention.v_proj.weight",   W_V,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.attention.out_proj.weight", W_O,          {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.ln_2.weight",                    W_MLP_NORM,   {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_fc_0.weight",              W_GATE,       {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_fc_1.weight",              W_UP,         {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.h.%u.mlp.c_proj.weight",              W_DOWN,       {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"transformer.h.%u.attn.attention.rotary.inv_freq", W_IGNORE,     {D_NONE},            SHARD_NONE, WHEN_NEVER},
    {"transformer.rotary.inv_freq",                     W_IGNORE,     {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_exaone = {
    .name = "ExaoneForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};
