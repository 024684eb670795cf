/* SPDX-License-Identifier: Apache-2.0 */
/* positions - levels 1 to 3 of engine/plugin.h: a world model of frames of image tokens with action
 * vectors between them. Two tables of positions are added to the embedding, a position's place
 * within its frame and its frame; an action becomes a row by a linear layer. */
#include <stdio.h>
#include "engine/plugin.h"

static const struct quire_config_rule config[] = {
    {"max_position_embeddings", "num_spatio_embeddings * num_temporal_embeddings", NULL},
};

static const struct quire_tensor_map maps[] = {
    {"tok_embeddings\\.weight", "model.embed_tokens.weight", QUIRE_AS_IS},
    {"norm\\.weight", "model.norm.weight", QUIRE_AS_IS},
    {"output\\.weight", "lm_head.weight", QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.attention\\.wq\\.(\\w+)", "model.layers.$1.self_attn.q_proj.$2",
     QUIRE_UNPERMUTE_Q},
    {"layers\\.(\\d+)\\.attention\\.wk\\.(\\w+)", "model.layers.$1.self_attn.k_proj.$2",
     QUIRE_UNPERMUTE_K},
    {"layers\\.(\\d+)\\.attention\\.w([vo])\\.(\\w+)", "model.layers.$1.self_attn.$2_proj.$3",
     QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.attention_norm\\.weight", "model.layers.$1.input_layernorm.weight",
     QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.ffn_norm\\.weight", "model.layers.$1.post_attention_layernorm.weight",
     QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.feed_forward\\.w1\\.(\\w+)", "model.layers.$1.mlp.gate_proj.$2",
     QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.feed_forward\\.w2\\.(\\w+)", "model.layers.$1.mlp.down_proj.$2",
     QUIRE_AS_IS},
    {"layers\\.(\\d+)\\.feed_forward\\.w3\\.(\\w+)", "model.layers.$1.mlp.up_proj.$2", QUIRE_AS_IS},
};

static const struct quire_tensor tensors[] = {
    {"action", "action_projection.weight", QUIRE_MATRIX, "hidden_size", "action_dim", 0},
    {"action.bias", "action_projection.bias", QUIRE_VECTOR, "hidden_size", NULL,
     QUIRE_TENSOR_OPTIONAL},
    {"spatio", "pos_embedding_spatio_temporal.spatio_embeddings.weight", QUIRE_TABLE,
     "num_spatio_embeddings", "hidden_size", 0},
    {"temporal", "pos_embedding_spatio_temporal.temporal_embeddings.weight", QUIRE_TABLE,
     "num_temporal_embeddings", "hidden_size", 0},
};

static int embed(const struct quire_host *host, const struct quire_model *m,
                 const struct quire_item *item, const struct quire_rows *out,
                 struct quire_plugin_error *error)
{
    const struct quire_rows in = {(float *)(uintptr_t)item->data, 1, item->dims[0], item->dims[0]};
    return host->linear(m, "action", "action.bias", &in, out, error);
}

static int change(const struct quire_host *host, struct quire_program *p,
                  struct quire_plugin_error *error)
{
    double frame, n_frame;
    const struct quire_model *m = host->program_model(p);
    if (!host->config_number(m, "num_spatio_embeddings", &frame) ||
        !host->config_number(m, "num_temporal_embeddings", &n_frame)) {
        snprintf(error->message, sizeof error->message, "the config has no embeddings");
        return 1;
    }
    const struct quire_op spatio = {
        .size = sizeof spatio,
        .kind = "positions",
        .out = "x",
        .weight = "spatio",
        .params = {{"mod", frame}},
    };
    const struct quire_op temporal = {
        .size = sizeof temporal,
        .kind = "positions",
        .out = "x",
        .weight = "temporal",
        .params = {{"div", frame}, {"mod", n_frame}},
    };
    return host->insert_after(p, QUIRE_NO_LAYER, "embed", &spatio, error) ||
           host->insert_after(p, QUIRE_NO_LAYER, "positions", &temporal, error);
}

static const struct quire_modality actions = {
    .size = sizeof actions,
    .name = "actions",
    .placeholder = -3,
    .dtype = QUIRE_F32,
    .dims = {"action_dim"},
    .n_dim = 1,
    .n_token = "1",
    .max_items = "num_action_embeddings * num_temporal_embeddings",
    .embed_item = embed,
};
static const struct quire_modality *const modalities[] = {&actions};

static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "LlamaActionForCausalLM",
    .base = "LlamaForCausalLM",
    .config = config,
    .n_config = sizeof config / sizeof *config,
    .maps = maps,
    .n_map = sizeof maps / sizeof *maps,
    .tensors = tensors,
    .n_tensor = sizeof tensors / sizeof *tensors,
    .modalities = modalities,
    .n_modality = 1,
    .program = change,
};
static const struct quire_architecture *const architectures[] = {&architecture};

static const struct quire_plugin plugin = {
    .size = sizeof plugin,
    .abi = QUIRE_PLUGIN_ABI,
    .name = "positions",
    .version = "1.0",
    .architectures = architectures,
    .n_architecture = 1,
};

const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
