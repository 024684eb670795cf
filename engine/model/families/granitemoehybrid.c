/* SPDX-License-Identifier: Apache-2.0 */
/* granitemoehybrid - Granite 4: granitemoeshared with Mamba 2 in place of attention in most
 * layers. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                             W_EMBED,          {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                        W_LM_HEAD,        {D_VOCAB, D_HIDDEN},          SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                     W_FINAL_NORM,     {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",                W_ATTN_NORM,      {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mamba.in_proj.weight",                  W_MIX_IN,         {D_MIX_IN, D_HIDDEN},         SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.in_proj.bias",                    W_MIX_IN_BIAS,    {D_MIX_IN},                   SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.mamba.conv1d.weight",                   W_CONV,           {D_CONV, D_CONV_WIDTH},       SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.conv1d.bias",                     W_CONV_BIAS,      {D_CONV},                     SHARD_NONE, WHEN_CONV_BIAS},
    {"model.layers.%u.mamba.A_log",                           W_MIX_RATE,       {D_VALUE_HEADS},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.dt_bias",                         W_MIX_RATE_BIAS,  {D_VALUE_HEADS},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.D",                               W_MIX_SKIP,       {D_VALUE_HEADS},              SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.norm.weight",                     W_MIX_NORM,       {D_MIX_OUT},                  SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.out_proj.weight",                 W_MIX_OUT,        {D_HIDDEN, D_MIX_OUT},        SHARD_NONE, WHEN_MIXER},
    {"model.layers.%u.mamba.out_proj.bias",                   W_MIX_OUT_BIAS,   {D_HIDDEN},                   SHARD_NONE, WHEN_MIX_BIAS},
    {"model.layers.%u.self_attn.q_proj.weight",               W_Q,              {D_Q, D_HIDDEN},              SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.k_proj.weight",               W_K,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.v_proj.weight",               W_V,              {D_KV, D_HIDDEN},             SHARD_ROWS, WHEN_ATTENTION},
    {"model.layers.%u.self_attn.o_proj.weight",               W_O,              {D_HIDDEN, D_Q},              SHARD_COLS, WHEN_ATTENTION},
    {"model.layers.%u.post_attention_layernorm.weight",       W_MLP_NORM,       {D_HIDDEN},                   SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.shared_mlp.input_linear.weight",        W_GATE_UP,        {D_2_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_DENSE},
    {"model.layers.%u.shared_mlp.output_linear.weight",       W_DOWN,           {D_HIDDEN, D_INTER},          SHARD_COLS, WHEN_DENSE},
    {"model.layers.%u.block_sparse_moe.router.layer.weight",  W_ROUTER,         {D_EXPERTS, D_HIDDEN},        SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.shared_mlp.input_linear.weight",        W_GATE_UP,        {D_2_SHARED_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_SHARED},
    {"model.layers.%u.shared_mlp.output_linear.weight",       W_DOWN,           {D_HIDDEN, D_SHARED_INTER},   SHARD_COLS, WHEN_SHARED},
    {"model.layers.%u.block_sparse_moe.input_linear.weight",  W_EXPERT_GATE_UP, {D_2_EXPERT_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.block_sparse_moe.output_linear.weight", W_EXPERT_DOWN,    {D_HIDDEN, D_EXPERT_INTER},   SHARD_COLS, WHEN_EXPERTS},
};
/* clang-format on */

const struct arch arch_granitemoehybrid = {
    .name = "GraniteMoeHybridForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .embedding = ARCH_EMBEDDING_CONFIG,
            .route = ARCH_ROUTE_TOP_SOFTMAX,
            .share = ARCH_SHARE_WHOLE,
            .no_rope = true,
            .scales = true,
        },
};
