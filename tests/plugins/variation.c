/* SPDX-License-Identifier: Apache-2.0 */
/* variation - level 1 of engine/plugin.h: Llama under other names. Keys of config.json, names of
 * tensors, fused and interleaved projections; no code. */
#include "engine/plugin.h"

static const struct quire_config_rule config[] = {
    {"hidden_size", "dim", NULL},
    {"num_hidden_layers", "sizes.n_layers", NULL},
    {"num_attention_heads", "heads.q", NULL},
    {"num_key_value_heads", "heads.kv", NULL},
    {"intermediate_size", "ffn_blocks * 32", NULL},
    {"max_position_embeddings", "frames * frame_len", NULL},
    {"rms_norm_eps", "eps", NULL},
    {"rope_theta", NULL, "1000000.0"},
    {"hidden_act", NULL, "\"silu\""},
    {"tie_word_embeddings", NULL, "false"},
};

static const struct quire_setting layer[] = {
    {"norm", "rms"},
    {"activations", "silu, gelu"},
};

static const struct quire_tensor_map maps[] = {
    {"tok\\.weight", "model.embed_tokens.weight", QUIRE_AS_IS},
    {"head\\.weight", "lm_head.weight", QUIRE_AS_IS},
    {"blocks\\.(\\d+)\\.qkv\\.weight",
     "model.layers.$1.self_attn.q_proj.weight, model.layers.$1.self_attn.k_proj.weight, "
     "model.layers.$1.self_attn.v_proj.weight",
     QUIRE_AS_IS},
    {"blocks\\.(\\d+)\\.wq\\.weight", "model.layers.$1.self_attn.q_proj.weight", QUIRE_UNPERMUTE_Q},
    {"blocks\\.(\\d+)\\.wk\\.weight", "model.layers.$1.self_attn.k_proj.weight", QUIRE_UNPERMUTE_K},
    {"blocks\\.(\\d+)\\.wv\\.weight", "model.layers.$1.self_attn.v_proj.weight", QUIRE_AS_IS},
    {"blocks\\.(\\d+)\\.gate_up\\.weight",
     "model.layers.$1.mlp.gate_proj.weight, model.layers.$1.mlp.up_proj.weight", QUIRE_AS_IS},
    {"blocks\\.(\\d+)\\.(\\w+)\\.norm", "model.layers.$1.$2_layernorm.weight", QUIRE_AS_IS},
    {"blocks\\.(\\d+)\\.(.*)", "model.layers.$1.$2", QUIRE_AS_IS},
    {"buffers\\..*", NULL, QUIRE_SKIP},
};

static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "VariationForCausalLM",
    .base = "LlamaForCausalLM",
    .config = config,
    .n_config = sizeof config / sizeof *config,
    .layer = layer,
    .n_layer = sizeof layer / sizeof *layer,
    .maps = maps,
    .n_map = sizeof maps / sizeof *maps,
};
static const struct quire_architecture *const architectures[] = {&architecture};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "variation",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
