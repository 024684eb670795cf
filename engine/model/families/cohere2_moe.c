/* SPDX-License-Identifier: Apache-2.0 */
/* cohere2_moe - Cohere 2 with experts: attention is beside them and beside one that all rows use;
 * norms are LayerNorms or RMS norms. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                               W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                          W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                       W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                  W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",                 W_Q,              {D_Q, D_HIDDEN},              SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",                 W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",                 W_V,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",                 W_O,              {D_HIDDEN, D_Q},              SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",                   W_Q_BIAS,         {D_Q},                        SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",                   W_K_BIAS,         {D_KV},                       SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",                   W_V_BIAS,         {D_KV},                       SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",                   W_O_BIAS,         {D_HIDDEN},                   SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.mlp.gate_proj.weight",                    W_GATE,           {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.up_proj.weight",                      W_UP,             {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.down_proj.weight",                    W_DOWN,           {D_HIDDEN, D_INTER},          SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.mlp.gate.weight",                         W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.mlp.shared_experts.gate_proj.weight",     W_GATE,           {D_SHARED_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_SHARED},
    {"model.layers.%u.mlp.shared_experts.up_proj.weight",       W_UP,             {D_SHARED_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_SHARED},
    {"model.layers.%u.mlp.shared_experts.down_proj.weight",     W_DOWN,           {D_HIDDEN, D_SHARED_INTER},   SHARD_COLS, WHEN_SHARED},
    {"model.layers.%u.mlp.experts.%u.gate_proj.weight",         W_EXPERT_GATE,    {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.up_proj.weight",           W_EXPERT_UP,      {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.down_proj.weight",         W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",                W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"model.layers.%u.mlp.experts.down_proj",                   W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_STORED},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",           W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_cohere2_moe = {
    .name = "Cohere2MoeForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norm = ARCH_NORM_CONFIG,
            .residual = ARCH_RESIDUAL_SHARED_NORM,
            .positions = ARCH_ROPE_INTERLEAVED,
            .route = ARCH_ROUTE_CONFIG,
            .share = ARCH_SHARE_WHOLE,
            .windows = true,
            .no_rope = true,
            .scales = true,
        },
};
