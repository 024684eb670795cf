/* SPDX-License-Identifier: Apache-2.0 */
/* mimo_v2_flash - MiMo V2 Flash: layers with a window have sinks, twice the KV heads and a rope of
 * their own; V has narrower heads than K and a scale; experts are chosen as DeepSeek-V3's. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                           W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                      W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                   W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",              W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",             W_Q,              {D_Q, D_HIDDEN},              SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",             W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",             W_V,              {D_KV_STORED, D_HIDDEN},      SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",             W_O,              {D_HIDDEN, D_Q_STORED},       SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.attention_sink_bias",       W_SINKS,          {D_HEADS},                    SHARD_ROWS, WHEN_WINDOW},
    {"model.layers.%u.self_attn.sinks",                     W_SINKS,          {D_HEADS},                    SHARD_ROWS, WHEN_WINDOW},
    {"model.layers.%u.post_attention_layernorm.weight",     W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",                W_GATE,           {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.up_proj.weight",                  W_UP,             {D_INTER, D_HIDDEN},          SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.mlp.down_proj.weight",                W_DOWN,           {D_HIDDEN, D_INTER},          SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.mlp.gate.weight",                     W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.mlp.gate.e_score_correction_bias",    W_ROUTER_BIAS,    {D_EXPERTS},                  SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.gate_proj.weight",     W_EXPERT_GATE,    {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.up_proj.weight",       W_EXPERT_UP,      {D_EXPERT_INTER, D_HIDDEN},   SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.%u.down_proj.weight",     W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",            W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"model.layers.%u.mlp.experts.down_proj",               W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_STORED},
};
/* clang-format on */

const struct arch arch_mimo_v2_flash = {
    .name = "MiMoV2FlashForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .route = ARCH_ROUTE_SIGMOID,
            .windows = true,
            .local_rope = true,
            .sinks = true,
            .window_sinks = true,
        },
};
