/* SPDX-License-Identifier: Apache-2.0 */
/* llama - Llama 2 and 3 and the many that share their shape. Biases are rare and said by
 * config.json. Families with its tensors: ernie4_5, granite, internlm3, iquestcoder, seed_oss,
 * smollm3. */
#include "engine/model/arch.h"

/* clang-format off */
static const struct arch_tensor tensors[] = {
    /* checkpoint name, slot, [rows, cols], split over ranks, when it must be there */
    {"model.embed_tokens.weight",                            W_EMBED,      {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"lm_head.weight",                                       W_LM_HEAD,    {D_VOCAB, D_HIDDEN},   SHARD_ROWS,  WHEN_UNTIED},
    {"model.norm.weight",                                    W_FINAL_NORM, {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.input_layernorm.weight",               W_ATTN_NORM,  {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.weight",              W_Q,          {D_Q, D_HIDDEN},       SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.k_proj.weight",              W_K,          {D_KV, D_HIDDEN},      SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.v_proj.weight",              W_V,          {D_KV, D_HIDDEN},      SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.o_proj.weight",              W_O,          {D_HIDDEN, D_Q},       SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.self_attn.q_proj.bias",                W_Q_BIAS,     {D_Q},                 SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.k_proj.bias",                W_K_BIAS,     {D_KV},                SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.v_proj.bias",                W_V_BIAS,     {D_KV},                SHARD_ROWS,  WHEN_ATTENTION_BIAS},
    {"model.layers.%u.self_attn.o_proj.bias",                W_O_BIAS,     {D_HIDDEN},            SHARD_NONE,  WHEN_OUT_BIAS},
    {"model.layers.%u.post_attention_layernorm.weight",      W_MLP_NORM,   {D_HIDDEN},            SHARD_NONE,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.weight",                 W_GATE,       {D_INTER, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.up_proj.weight",                   W_UP,         {D_INTER, D_HIDDEN},   SHARD_ROWS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.down_proj.weight",                 W_DOWN,       {D_HIDDEN, D_INTER},   SHARD_COLS,  WHEN_ALWAYS},
    {"model.layers.%u.mlp.gate_proj.bias",                   W_GATE_BIAS,  {D_INTER},             SHARD_ROWS,  WHEN_MLP_BIAS},
    {"model.layers.%u.mlp.up_proj.bias",                     W_UP_BIAS,    {D_INTER},             SHARD_ROWS,  WHEN_MLP_BIAS},
    {"model.layers.%u.mlp.down_proj.bias",                   W_DOWN_BIAS,  {D_HIDDEN},            SHARD_NONE,  WHEN_MLP_BIAS},
    {"model.layers.%u.self_attn.rotary_emb.inv_freq",        W_IGNORE,     {D_NONE},              SHARD_NONE,  WHEN_NEVER},
};
/* clang-format on */

const struct arch arch_llama = {
    .name = "LlamaForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};

/* ERNIE 4.5, dense: llama whose rope turns neighbouring pairs. */
const struct arch arch_ernie4_5 = {
    .name = "Ernie4_5ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.positions = ARCH_ROPE_INTERLEAVED},
};

/* Granite: llama with multipliers of the embedding, the scores, each branch and the logits. */
const struct arch arch_granite = {
    .name = "GraniteForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer = {.scales = true, .embedding = ARCH_EMBEDDING_CONFIG},
};

/* InternLM 3: llama with two keys of biases, of q, k and v, and of all others. */
const struct arch arch_internlm3 = {
    .name = "InternLM3ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};

/* IQuest-Coder: llama under a name of its own. */
const struct arch arch_iquestcoder = {
    .name = "IQuestCoderForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};

/* Seed-OSS: llama with biases of q, k and v, and one of o by a key of its own. */
const struct arch arch_seed_oss = {
    .name = "SeedOssForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
};

/* SmolLM 3: llama with some layers without rope. */
const struct arch arch_smollm3 = {
    .name = "SmolLM3ForCausalLM",
    .prefix = "model.",
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .layer =
        {
            .windows = true,
            .no_rope = true,
        },
};
