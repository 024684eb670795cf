/* SPDX-License-Identifier: Apache-2.0 */
/* gemma4_text - Gemma 4 (text): layers without a window have wider heads, of which a part of the
 * pairs is rotated, and V may be K in front of its norm and rope; V has a norm without weights. The
 * last layers of small models read the K and V of others, and each layer has an input of the token
 * beside the stream; in the one with experts a layer has an MLP too. Files have K and V of all
 * layers, which those that read others' do not use. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                           W_EMBED,             {D_VOCAB, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                      W_LM_HEAD,           {D_VOCAB, D_HIDDEN},             SHARD_ROWS, WHEN_UNTIED},
    {"model.norm.weight",                                   W_FINAL_NORM,        {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.embed_tokens_per_layer.weight",                 W_EMBED_LAYERS,      {D_INPUT_VOCAB, D_LAYER_INPUTS}, SHARD_NONE, WHEN_LAYER_INPUT},
    {"model.per_layer_model_projection.weight",             W_LAYER_INPUTS,      {D_LAYER_INPUTS, D_HIDDEN},      SHARD_ROWS, WHEN_LAYER_INPUT},
    {"model.per_layer_projection_norm.weight",              W_LAYER_INPUTS_NORM, {D_LAYER_INPUT},                 SHARD_NONE, WHEN_LAYER_INPUT},
    {"model.layers.%u.input_layernorm.weight",              W_ATTN_NORM,         {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",             W_Q,                 {D_Q, D_HIDDEN},                 SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",             W_K,                 {D_KV, D_HIDDEN},                SHARD_ROWS, WHEN_OWN_KV},
    {"model.layers.%u.self_attn.v_proj.weight",             W_V,                 {D_KV, D_HIDDEN},                SHARD_ROWS, WHEN_OWN_V},
    {"model.layers.%u.self_attn.k_proj.weight",             W_V,                 {D_KV, D_HIDDEN},                SHARD_ROWS, WHEN_V_IS_K},
    {"model.layers.%u.self_attn.o_proj.weight",             W_O,                 {D_HIDDEN, D_Q},                 SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",               W_Q_BIAS,            {D_Q},                           SHARD_ROWS, WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",               W_K_BIAS,            {D_KV},                          SHARD_ROWS, WHEN_OWN_KV_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",               W_V_BIAS,            {D_KV},                          SHARD_ROWS, WHEN_OWN_V_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",               W_V_BIAS,            {D_KV},                          SHARD_ROWS, WHEN_V_IS_K_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",               W_O_BIAS,            {D_HIDDEN},                      SHARD_NONE, WHEN_OUT_BIAS},
    {"model.layers.%u.self_attn.q_norm.weight",             W_Q_NORM,            {D_HEAD},                        SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_norm.weight",             W_K_NORM,            {D_HEAD},                        SHARD_NONE, WHEN_OWN_KV},
    {ARCH_ONES, W_V_NORM, {D_HEAD}, SHARD_NONE, WHEN_OWN_KV},
    {"model.layers.%u.post_attention_layernorm.weight",     W_ATTN_POST_NORM,    {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.pre_feedforward_layernorm.weight",    W_MLP_NORM,          {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",                W_GATE,              {D_INTER, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",                  W_UP,                {D_INTER, D_HIDDEN},             SHARD_ROWS, WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",                W_DOWN,              {D_HIDDEN, D_INTER},             SHARD_COLS, WHEN_ALWAYS},
    {"model.layers.%u.post_feedforward_layernorm.weight",   W_MLP_POST_NORM,     {D_HIDDEN},                      SHARD_NONE, WHEN_ALWAYS},
    {"model.layers.%u.post_feedforward_layernorm_1.weight", W_MLP_SIDE_NORM,     {D_HIDDEN},                      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.pre_feedforward_layernorm_2.weight",  W_EXPERTS_NORM,      {D_HIDDEN},                      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.post_feedforward_layernorm_2.weight", W_EXPERTS_POST_NORM, {D_HIDDEN},                      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.router.scale",                        W_ROUTER_NORM,       {D_HIDDEN},                      SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.router.per_expert_scale",             W_EXPERT_SCALES,     {D_EXPERTS},                     SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.router.proj.weight",                  W_ROUTER,            {D_EXPERTS, D_HIDDEN},           SHARD_NONE, WHEN_EXPERTS},
    {"model.layers.%u.experts.gate_up_proj",                W_EXPERT_GATE_UP,    {D_2_EXPERT_INTER, D_HIDDEN},    SHARD_ROWS, WHEN_EXPERTS},
    {"model.layers.%u.experts.down_proj",                   W_EXPERT_DOWN,       {D_HIDDEN, D_EXPERT_INTER},      SHARD_COLS, WHEN_EXPERTS},
    {"model.layers.%u.per_layer_input_gate.weight",         W_LAYER_GATE,        {D_LAYER_INPUT, D_HIDDEN},       SHARD_ROWS, WHEN_LAYER_INPUT},
    {"model.layers.%u.per_layer_projection.weight",         W_LAYER_OUT,         {D_HIDDEN, D_LAYER_INPUT},       SHARD_COLS, WHEN_LAYER_INPUT},
    {"model.layers.%u.post_per_layer_input_norm.weight",    W_LAYER_POST_NORM,   {D_HIDDEN},                      SHARD_NONE, WHEN_LAYER_INPUT},
    {"model.layers.%u.layer_scalar",                        W_LAYER_SCALE,       {D_ONE},                         SHARD_NONE, WHEN_ALWAYS},
};
/* clang-format on */

const struct arch arch_gemma4_text = {
    .name = "Gemma4ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .norms = ARCH_NORMS_BOTH,
            .mlp_beside = true,
            .qk_norm = ARCH_QK_NORM_HEADS,
            .activations = ARCH_ACTS_GELU,
            .embedding = ARCH_EMBEDDING_ROOT_HIDDEN,
            .windows = true,
            .local_rope = true,
            .soft_caps = true,
            .scales = true,
        },
};

/* Gemma 4 12B, text alone: a layer has no embedding of the token, and no experts. */
const struct arch arch_gemma4_unified_text = {
    .name = "Gemma4UnifiedForCausalLM",
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
