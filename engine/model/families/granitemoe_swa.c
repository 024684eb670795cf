/* SPDX-License-Identifier: Apache-2.0 */
/* granitemoe_swa - Granite with windows (granite_swa) and with experts, by the names that
 * transformers gives them; beside them a shared one where the config has it. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                             W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                        W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                     W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",               W_Q,              {D_Q, D_HIDDEN},              SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",               W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",               W_V,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",               W_O,              {D_HIDDEN, D_Q},              SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",                 W_Q_BIAS,         {D_Q},                        SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",                 W_K_BIAS,         {D_KV},                       SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",                 W_V_BIAS,         {D_KV},                       SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",                 W_O_BIAS,         {D_HIDDEN},                   SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.sinks",                       W_SINKS,          {D_HEADS},                    SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",       W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.block_sparse_moe.router.weight",        W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.shared_mlp.input_linear.weight",        W_GATE_UP,        {D_2_SHARED_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_SHARED},
    {"model.layers.%u.shared_mlp.output_linear.weight",       W_DOWN,           {D_HIDDEN, D_SHARED_INTER},   SHARD_COLS, WHEN_SHARED},
    {"model.layers.%u.block_sparse_moe.experts.gate_up_proj", W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.experts.down_proj",    W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",         W_IGNORE,         {D_NONE},                     SHARD_NONE, WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_granitemoe_swa = {
    .name = "GraniteMoeSWAForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .embedding = ARCH_EMBEDDING_CONFIG,
            .route = ARCH_ROUTE_TOP_SOFTMAX,
            .share = ARCH_SHARE_WHOLE,
            .windows = true,
            .no_rope = true,
            .local_rope = true,
            .sinks = true,
            .scales = true,
        },
};
