/* SPDX-License-Identifier: Apache-2.0 */
/* nanochat - nanochat: norms without weights, one of the embedding, of heads behind the rope, which
 * turns backward; an MLP without a gate. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                     W_EMBED,      {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {ARCH_ONES, W_EMBED_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"lm_head.weight",                                W_LM_HEAD,    {D_VOCAB, D_HIDDEN}, SHARD_ROWS, WHEN_UNTIED},
    {ARCH_ONES, W_FINAL_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {ARCH_ONES, W_ATTN_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",       W_Q,          {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",       W_K,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",       W_V,          {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",       W_O,          {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",         W_Q_BIAS,     {D_Q},               SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",         W_K_BIAS,     {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",         W_V_BIAS,     {D_KV},              SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",         W_O_BIAS,     {D_HIDDEN},          SHARD_NONE, WHEN_OUT_BIAS},
    {ARCH_ONES, W_Q_NORM, {D_HEAD}, SHARD_NONE, WHEN_ALWAYS},
    {ARCH_ONES, W_K_NORM, {D_HEAD}, SHARD_NONE, WHEN_ALWAYS},
    {ARCH_ONES, W_MLP_NORM, {D_HIDDEN}, SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc1.weight",                W_UP,         {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.fc2.weight",                W_DOWN,       {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq", W_IGNORE,     {D_NONE},            SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_nanochat = {
    .name = "NanoChatForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .qk_norm = ARCH_QK_NORM_HEADS,
            .qk_norm_behind_rope = true,
            .mlp = ARCH_MLP_PLAIN,
            .activations = 1u << ARCH_RELU2,
            .soft_caps = true,
        },
};
