/* SPDX-License-Identifier: Apache-2.0 */
/* dbrx - DBRX: LayerNorm without biases, q, k and v limited, experts in every layer. A tensor holds
 * all experts of a layer, their rows one after the other; those of `down` have inputs as rows. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"transformer.wte.weight",                                   W_EMBED,       {D_VOCAB, D_HIDDEN},                      SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,     {D_VOCAB, D_HIDDEN},                      SHARD_ROWS, WHEN_UNTIED},
    {"transformer.norm_f.weight",                                W_FINAL_NORM,  {D_HIDDEN},                               SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_attn_norm.norm_1.weight",       W_ATTN_NORM,   {D_HIDDEN},                               SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_attn_norm.attn.Wqkv.weight",    W_QKV,         {D_QKV, D_HIDDEN},                        SHARD_ROWS, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_attn_norm.attn.out_proj.weight", W_O,          {D_HIDDEN, D_Q},                          SHARD_COLS, WHEN_ALWAYS},
    {"transformer.blocks.%u.norm_attn_norm.norm_2.weight",       W_MLP_NORM,    {D_HIDDEN},                               SHARD_NONE, WHEN_ALWAYS},
    {"transformer.blocks.%u.ffn.router.layer.weight",            W_ROUTER,      {D_EXPERTS, D_HIDDEN},                    SHARD_NONE, WHEN_EXPERTS},
    {"transformer.blocks.%u.ffn.experts.mlp.w1",                 W_EXPERT_GATE, {D_EXPERT_INTER, D_HIDDEN},               SHARD_ROWS, WHEN_EXPERTS},
    {"transformer.blocks.%u.ffn.experts.mlp.v1",                 W_EXPERT_UP,   {D_EXPERT_INTER, D_HIDDEN},               SHARD_ROWS, WHEN_EXPERTS},
    {"transformer.blocks.%u.ffn.experts.mlp.w2",                 W_EXPERT_DOWN, {D_HIDDEN, D_EXPERT_INTER, D_TRANSPOSED}, SHARD_COLS, WHEN_EXPERTS},
};
/* clang-format on */

const struct arch arch_dbrx = {
    .name = "DbrxForCausalLM",
    .prefix = "transformer.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .experts_in_rows = true,
    .layer =
        {
            .norm = ARCH_NORM_LAYER,
            .clips = true,
        },
};
