/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_oss - experts with biases in every layer, gate and up limited; attention with a sink a head,
 * in windows in every second layer. A tensor holds all experts of a layer, inputs as rows; in MXFP4
 * outputs as rows (load/weight_mxfp4.h). */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                         W_EMBED,                      {D_VOCAB, D_HIDDEN},                        SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                                    W_LM_HEAD,                    {D_VOCAB, D_HIDDEN},                        SHARD_ROWS,  WHEN_UNTIED},
    {"model.norm.weight",                                 W_FINAL_NORM,                 {D_HIDDEN},                                 SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",            W_ATTN_NORM,                  {D_HIDDEN},                                 SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",           W_Q,                          {D_Q, D_HIDDEN},                            SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",           W_K,                          {D_KV, D_HIDDEN},                           SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",           W_V,                          {D_KV, D_HIDDEN},                           SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",           W_O,                          {D_HIDDEN, D_Q},                            SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",             W_Q_BIAS,                     {D_Q},                                      SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",             W_K_BIAS,                     {D_KV},                                     SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",             W_V_BIAS,                     {D_KV},                                     SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",             W_O_BIAS,                     {D_HIDDEN},                                 SHARD_NONE,  WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.sinks",                   W_SINKS,                      {D_HEADS},                                  SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.post_attention_layernorm.weight",   W_MLP_NORM,                   {D_HIDDEN},                                 SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.router.weight",                 W_ROUTER,                     {D_EXPERTS, D_HIDDEN},                      SHARD_NONE,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.router.bias",                   W_ROUTER_BIAS,                {D_EXPERTS},                                SHARD_NONE,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj",          W_EXPERT_GATE_UP_PAIRS,       {D_2_EXPERT_INTER, D_HIDDEN, D_TRANSPOSED}, SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.gate_up_proj_bias",     W_EXPERT_GATE_UP_PAIRS_BIAS,  {D_2_EXPERT_INTER},                         SHARD_ROWS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.down_proj",             W_EXPERT_DOWN,                {D_HIDDEN, D_EXPERT_INTER, D_TRANSPOSED},   SHARD_COLS,  WHEN_EXPERTS},
    {"model.layers.%u.mlp.experts.down_proj_bias",        W_EXPERT_DOWN_BIAS,           {D_HIDDEN},                                 SHARD_NONE,  WHEN_EXPERTS},
};
/* clang-format on */

const struct arch arch_gpt_oss = {
    .name = "GptOssForCausalLM",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .activations = 1u << ARCH_GELU_QUICK,
            .limited_glu = true,
            .route = ARCH_ROUTE_TOP_SOFTMAX,
            .windows = true,
            .sinks = true,
        },
};
