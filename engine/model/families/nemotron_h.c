/* SPDX-License-Identifier: Apache-2.0 */
/* nemotron_h - Nemotron H and Nemotron 3: each layer is one thing: Mamba 2, attention without
 * positions, an MLP without a gate, or experts without one, which in Nemotron 3 Super read and
 * write columns of their own. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"backbone.embeddings.weight",                               W_EMBED,            {D_VOCAB, D_HIDDEN},               SHARD_ROWS, WHEN_ALWAYS},
    {"lm_head.weight",                                           W_LM_HEAD,          {D_VOCAB, D_HIDDEN},               SHARD_ROWS, WHEN_UNTIED},
    {"backbone.norm_f.weight",                                   W_FINAL_NORM,       {D_HIDDEN},                        SHARD_NONE, WHEN_ALWAYS},
    {"backbone.layers.%u.norm.weight",                           W_ATTN_NORM,        {D_HIDDEN},                        SHARD_NONE, WHEN_BRANCH},
    {"backbone.layers.%u.mixer.in_proj.weight",                  W_MIX_IN,           {D_MIX_IN, D_HIDDEN},              SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.in_proj.bias",                    W_MIX_IN_BIAS,      {D_MIX_IN},                        SHARD_NONE, WHEN_MIX_BIAS},
    {"backbone.layers.%u.mixer.conv1d.weight",                   W_CONV,             {D_CONV, D_CONV_WIDTH},            SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.conv1d.bias",                     W_CONV_BIAS,        {D_CONV},                          SHARD_NONE, WHEN_CONV_BIAS},
    {"backbone.layers.%u.mixer.A_log",                           W_MIX_RATE,         {D_VALUE_HEADS},                   SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.dt_bias",                         W_MIX_RATE_BIAS,    {D_VALUE_HEADS},                   SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.D",                               W_MIX_SKIP,         {D_VALUE_HEADS},                   SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.norm.weight",                     W_MIX_NORM,         {D_MIX_OUT},                       SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.out_proj.weight",                 W_MIX_OUT,          {D_HIDDEN, D_MIX_OUT},             SHARD_NONE, WHEN_MIXER},
    {"backbone.layers.%u.mixer.out_proj.bias",                   W_MIX_OUT_BIAS,     {D_HIDDEN},                        SHARD_NONE, WHEN_MIX_BIAS},
    {"backbone.layers.%u.mixer.q_proj.weight",                   W_Q,                {D_Q, D_HIDDEN},                   SHARD_ROWS, WHEN_ATTENTION},
    {"backbone.layers.%u.mixer.k_proj.weight",                   W_K,                {D_KV, D_HIDDEN},                  SHARD_ROWS, WHEN_ATTENTION},
    {"backbone.layers.%u.mixer.v_proj.weight",                   W_V,                {D_KV, D_HIDDEN},                  SHARD_ROWS, WHEN_ATTENTION},
    {"backbone.layers.%u.mixer.o_proj.weight",                   W_O,                {D_HIDDEN, D_Q},                   SHARD_COLS, WHEN_ATTENTION},
    {"backbone.layers.%u.norm.weight",                           W_MLP_NORM,         {D_HIDDEN},                        SHARD_NONE, WHEN_MLP},
    {"backbone.layers.%u.mixer.up_proj.weight",                  W_UP,               {D_INTER, D_HIDDEN},               SHARD_ROWS, WHEN_MLP_ALONE},
    {"backbone.layers.%u.mixer.up_proj.bias",                    W_UP_BIAS,          {D_INTER},                         SHARD_ROWS, WHEN_MLP_ALONE_BIAS},
    {"backbone.layers.%u.mixer.down_proj.weight",                W_DOWN,             {D_HIDDEN, D_INTER},               SHARD_COLS, WHEN_MLP_ALONE},
    {"backbone.layers.%u.mixer.down_proj.bias",                  W_DOWN_BIAS,        {D_HIDDEN},                        SHARD_NONE, WHEN_MLP_ALONE_BIAS},
    {"backbone.layers.%u.mixer.gate.weight",                     W_ROUTER,           {D_EXPERTS, D_HIDDEN},             SHARD_NONE, WHEN_EXPERTS},
    {"backbone.layers.%u.mixer.gate.e_score_correction_bias",    W_ROUTER_BIAS,      {D_EXPERTS},                       SHARD_NONE, WHEN_EXPERTS},
    {"backbone.layers.%u.mixer.fc1_latent_proj.weight",          W_EXPERTS_IN,       {D_EXPERT_HIDDEN, D_HIDDEN},       SHARD_ROWS, WHEN_LATENT},
    {"backbone.layers.%u.mixer.fc1_latent_proj.bias",            W_EXPERTS_IN_BIAS,  {D_EXPERT_HIDDEN},                 SHARD_ROWS, WHEN_LATENT_BIAS},
    {"backbone.layers.%u.mixer.fc2_latent_proj.weight",          W_EXPERTS_OUT,      {D_HIDDEN, D_EXPERT_HIDDEN},       SHARD_COLS, WHEN_LATENT},
    {"backbone.layers.%u.mixer.fc2_latent_proj.bias",            W_EXPERTS_OUT_BIAS, {D_HIDDEN},                        SHARD_NONE, WHEN_LATENT_BIAS},
    {"backbone.layers.%u.mixer.shared_experts.up_proj.weight",   W_UP,               {D_SHARED_INTER, D_HIDDEN},        SHARD_ROWS, WHEN_SHARED},
    {"backbone.layers.%u.mixer.shared_experts.up_proj.bias",     W_UP_BIAS,          {D_SHARED_INTER},                  SHARD_ROWS, WHEN_SHARED_BIAS},
    {"backbone.layers.%u.mixer.shared_experts.down_proj.weight", W_DOWN,             {D_HIDDEN, D_SHARED_INTER},        SHARD_COLS, WHEN_SHARED},
    {"backbone.layers.%u.mixer.shared_experts.down_proj.bias",   W_DOWN_BIAS,        {D_HIDDEN},                        SHARD_NONE, WHEN_SHARED_BIAS},
    {"backbone.layers.%u.mixer.experts.%u.up_proj.weight",       W_EXPERT_UP,        {D_EXPERT_INTER, D_EXPERT_HIDDEN}, SHARD_ROWS, WHEN_EXPERTS},
    {"backbone.layers.%u.mixer.experts.%u.down_proj.weight",     W_EXPERT_DOWN,      {D_EXPERT_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_EXPERTS},
    {"backbone.layers.%u.mixer.experts.up_proj",                 W_EXPERT_UP,        {D_EXPERT_INTER, D_EXPERT_HIDDEN}, SHARD_ROWS, WHEN_STORED},
    {"backbone.layers.%u.mixer.experts.down_proj",               W_EXPERT_DOWN,      {D_EXPERT_HIDDEN, D_EXPERT_INTER}, SHARD_COLS, WHEN_STORED},
};
/* clang-format on */

const struct arch arch_nemotron_h = {
    .name = "NemotronHForCausalLM",
    .prefix = "backbone.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .positions = ARCH_NO_POSITIONS,
            .mlp = ARCH_MLP_PLAIN,
            .activations = 1u << ARCH_RELU2,
            .route = ARCH_ROUTE_SIGMOID,
            .share = ARCH_SHARE_WHOLE,
        },
};
