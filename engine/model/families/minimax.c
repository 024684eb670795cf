/* SPDX-License-Identifier: Apache-2.0 */
/* minimax - MiniMax-Text-01: most layers have lightning attention, all have experts; branches are
 * added to what their norm has made of the stream. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                             W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                        W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                     W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.qkv_proj.weight",             W_MIX_QKV_HEADS,  {D_MIX_QKV, D_HIDDEN},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.output_gate.weight",          W_MIX_Z,          {D_MIX_OUT, D_HIDDEN},        SHARD_NONE, WHEN_MIXER},
    {ARCH_RATES, W_MIX_RATE, {D_VALUE_HEADS}, SHARD_NONE, WHEN_MIXER},
    {ARCH_ZEROS, W_MIX_RATE_BIAS, {D_VALUE_HEADS}, SHARD_NONE, WHEN_MIXER},
    {ARCH_ZEROS, W_MIX_SKIP, {D_VALUE_HEADS}, SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.norm.weight",                 W_MIX_NORM,       {D_MIX_OUT},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.out_proj.weight",             W_MIX_OUT,        {D_HIDDEN, D_MIX_OUT},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.self_attn.q_proj.weight",               W_Q,              {D_Q, D_HIDDEN},              SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",               W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",               W_V,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.o_proj.weight",               W_O,              {D_HIDDEN, D_Q},              SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.post_attention_layernorm.weight",       W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.block_sparse_moe.gate.weight",          W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w1.weight", W_EXPERT_GATE,    {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w3.weight", W_EXPERT_UP,      {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w2.weight", W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.self_attn.slope_rate",                  W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
    {"model.layers.%u.self_attn.query_decay",                 W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
    {"model.layers.%u.self_attn.key_decay",                   W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
    {"model.layers.%u.self_attn.diagonal_decay",              W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",         W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_minimax = {
    .name = "MiniMaxForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norms = ARCH_NORMS_STREAM,
        },
};
