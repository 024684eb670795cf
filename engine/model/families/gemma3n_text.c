/* SPDX-License-Identifier: Apache-2.0 */
/* gemma3n_text - Gemma 3n (text): several residual streams (AltUp), a low-rank branch beside
 * attention (LAuReL), sparse gates in the first layers, norms of q, k and v, an input of the token
 * in each layer; the last layers read the K and V of others. Files have K and V of all layers. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                         W_EMBED,             {D_VOCAB, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                    W_LM_HEAD,           {D_VOCAB, D_HIDDEN},             SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                 W_FINAL_NORM,        {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.embed_tokens_per_layer.weight",               W_EMBED_LAYERS,      {D_INPUT_VOCAB, D_LAYER_INPUTS}, SHARD_NONE, WHEN_LAYER_INPUT},
    {"model.per_layer_model_projection.weight",           W_LAYER_INPUTS,      {D_LAYER_INPUTS, D_HIDDEN},      SHARD_ROWS, WHEN_LAYER_INPUT},
    {"model.per_layer_projection_norm.weight",            W_LAYER_INPUTS_NORM, {D_LAYER_INPUT},                 SHARD_NONE, WHEN_LAYER_INPUT},
    {"model.altup_projections.0.weight",                  W_STREAM_IN_1,       {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_2},
    {"model.altup_projections.1.weight",                  W_STREAM_IN_2,       {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_3},
    {"model.altup_projections.2.weight",                  W_STREAM_IN_3,       {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_4},
    {"model.altup_unembed_projections.0.weight",          W_STREAM_OUT_1,      {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_2},
    {"model.altup_unembed_projections.1.weight",          W_STREAM_OUT_2,      {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_3},
    {"model.altup_unembed_projections.2.weight",          W_STREAM_OUT_3,      {D_HIDDEN, D_HIDDEN},            SHARD_ROWS, WHEN_STREAMS_4},
    {"model.layers.%u.altup.router_norm.weight",          W_STREAM_NORM,       {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.altup.modality_router.weight",      W_STREAM_ROUTER,     {D_STREAMS, D_HIDDEN},           SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.altup.prediction_coefs.weight",     W_STREAM_PREDICT,    {D_STREAMS_2, D_STREAMS},        SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.altup.correction_coefs.weight",     W_STREAM_CORRECT,    {D_STREAMS, D_STREAMS},          SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.altup.correct_output_scale",        W_STREAM_SCALE,      {D_HIDDEN},                      SHARD_NONE, WHEN_SCALED},
    {"model.layers.%u.laurel.linear_left.weight",         W_LOW_RANK_IN,       {D_LOW_RANK, D_HIDDEN},          SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.laurel.linear_right.weight",        W_LOW_RANK_OUT,      {D_HIDDEN, D_LOW_RANK},          SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.laurel.post_laurel_norm.weight",    W_LOW_RANK_NORM,     {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",            W_ATTN_NORM,         {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",           W_Q,                 {D_Q, D_HIDDEN},                 SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",           W_K,                 {D_KV, D_HIDDEN},                SHARD_ROWS, WHEN_OWN_KV},
    {"model.layers.%u.self_attn.v_proj.weight",           W_V,                 {D_KV, D_HIDDEN},                SHARD_ROWS, WHEN_OWN_KV},
    {"model.layers.%u.self_attn.o_proj.weight",           W_O,                 {D_HIDDEN, D_Q},                 SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",             W_Q_BIAS,            {D_Q},                           SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",             W_K_BIAS,            {D_KV},                          SHARD_ROWS, WHEN_OWN_KV_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",             W_V_BIAS,            {D_KV},                          SHARD_ROWS, WHEN_OWN_KV_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",             W_O_BIAS,            {D_HIDDEN},                      SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.q_norm.weight",           W_Q_NORM,            {D_HEAD},                        SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_norm.weight",           W_K_NORM,            {D_HEAD},                        SHARD_NONE, WHEN_OWN_KV},
    {ARCH_ONES, W_V_NORM, {D_HEAD}, SHARD_NONE, WHEN_OWN_KV},
    {"model.layers.%u.post_attention_layernorm.weight",   W_ATTN_POST_NORM,    {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.pre_feedforward_layernorm.weight",  W_MLP_NORM,          {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",              W_GATE,              {D_INTER, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",                W_UP,                {D_INTER, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",              W_DOWN,              {D_HIDDEN, D_INTER},             SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.post_feedforward_layernorm.weight", W_MLP_POST_NORM,     {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.per_layer_input_gate.weight",       W_LAYER_GATE,        {D_LAYER_INPUT, D_HIDDEN},       SHARD_ROWS, WHEN_LAYER_INPUT},
    {"model.layers.%u.per_layer_projection.weight",       W_LAYER_OUT,         {D_HIDDEN, D_LAYER_INPUT},       SHARD_COLS, WHEN_LAYER_INPUT},
    {"model.layers.%u.post_per_layer_input_norm.weight",  W_LAYER_POST_NORM,   {D_HIDDEN},                      SHARD_NONE, WHEN_LAYER_INPUT},
};
/* clang-format on */

const struct arch arch_gemma3n_text = {
    .name = "Gemma3nForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norms = ARCH_NORMS_BOTH,
            .qk_norm = ARCH_QK_NORM_HEADS,
            .activations = ARCH_ACTS_GELU,
            .embedding = ARCH_EMBEDDING_ROOT_HIDDEN,
            .windows = true,
            .local_rope = true,
            .soft_caps = true,
            .scales = true,
        },
};
