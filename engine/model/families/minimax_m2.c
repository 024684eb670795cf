/* SPDX-License-Identifier: Apache-2.0 */
/* minimax_m2 - MiniMax M2: partial rope, q and k each normed as one vector, experts in every layer
 * chosen by the sigmoid of their scores and a bias. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                                W_EMBED,       {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,     {D_VOCAB, D_HIDDEN},        SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                        W_FINAL_NORM,  {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                   W_ATTN_NORM,   {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",                  W_Q,           {D_Q, D_HIDDEN},            SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",                  W_K,           {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",                  W_V,           {D_KV, D_HIDDEN},           SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",                  W_O,           {D_HIDDEN, D_Q},            SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_norm.weight",                  W_Q_NORM,      {D_Q},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_norm.weight",                  W_K_NORM,      {D_KV},                     SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",          W_MLP_NORM,    {D_HIDDEN},                 SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.block_sparse_moe.gate.weight",             W_ROUTER,      {D_EXPERTS, D_HIDDEN},      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.e_score_correction_bias", W_ROUTER_BIAS, {D_EXPERTS},                SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w1.weight",    W_EXPERT_GATE, {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w3.weight",    W_EXPERT_UP,   {D_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.%u.w2.weight",    W_EXPERT_DOWN, {D_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",            W_IGNORE,      {D_NONE},                   SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_minimax_m2 = {
    .name = "MiniMaxM2ForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .qk_norm = ARCH_QK_NORM_WHOLE,
            .route = ARCH_ROUTE_SIGMOID,
        },
};
