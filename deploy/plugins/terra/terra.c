/* SPDX-License-Identifier: Apache-2.0 */
/* terra - a video world model as a plugin: LlamaActionForCausalLM (model_type "llama_action").
 *
 * A frame is P image tokens; A actions of three numbers follow it, so that a frame and its actions
 * are S = P + A positions. At position p the model gets
 *
 *     x = (embed_tokens[token] or action_projection(action)) + spatio[p % S] + temporal[p // S]
 *
 * and from there on it is a Llama. So the plugin says four things and leaves the rest to the base:
 * the config keys, the names of tensors, two additions behind the embedding, and what an action is.
 * ../README.md explains each step. */
#include <quire/plugin.h>
#include <stdio.h>

/* ---- config.json ---- */

/* The defaults are those of the transformers class. The tables of positions end at S * T, so this
 * is the longest sequence, whatever max_position_embeddings says. No token ends a frame: without
 * the last row a Llama's default id, which is an image token here, would. */
static const struct quire_config_rule config[] = {
    {"num_image_patches", NULL, "576"},
    {"num_action_embeddings", "num_action_tokens", "6"},
    {"num_spatio_embeddings", NULL, "582"},
    {"num_temporal_embeddings", NULL, "25"},
    {"action_dim", NULL, "3"},
    {"max_position_embeddings", "num_spatio_embeddings * num_temporal_embeddings", NULL},
    {"rms_norm_eps", NULL, "1e-6"},
    {"eos_token_id", NULL, "null"},
};

static int check_layout(const struct quire_host *host, const struct quire_model *m,
                        struct quire_plugin_error *error)
{
    double patches = 0, actions = 0, positions = 0;
    host->config_number(m, "num_image_patches", &patches);
    host->config_number(m, "num_action_embeddings", &actions);
    host->config_number(m, "num_spatio_embeddings", &positions);
    if (patches + actions == positions)
        return 0;
    snprintf(error->message, sizeof error->message,
             "num_spatio_embeddings is %g, expected num_image_patches + num_action_tokens = %g",
             positions, patches + actions);
    return 1;
}

/* ---- tensors ---- */

/* Those that a Llama does not have. The projection has three columns: quantizing it saves nothing
 * and costs accuracy. */
static const struct quire_tensor tensors[] = {
    {
        .id = "spatio",
        .name = "pos_embedding_spatio_temporal.spatio_embeddings.weight",
        .kind = QUIRE_TABLE,
        .rows = "num_spatio_embeddings",
        .cols = "hidden_size",
    },
    {
        .id = "temporal",
        .name = "pos_embedding_spatio_temporal.temporal_embeddings.weight",
        .kind = QUIRE_TABLE,
        .rows = "num_temporal_embeddings",
        .cols = "hidden_size",
    },
    {
        .id = "projection",
        .name = "action_projection.weight",
        .kind = QUIRE_MATRIX,
        .rows = "hidden_size",
        .cols = "action_dim",
        .flags = QUIRE_TENSOR_NOT_QUANTIZED,
    },
    {
        .id = "projection_bias",
        .name = "action_projection.bias",
        .kind = QUIRE_VECTOR,
        .rows = "hidden_size",
    },
};

/* Checkpoints come with the names of Hugging Face, which the base knows, or with Mistral's. The
 * latter keep q and k in the order of interleaved rope, so their rows have to move. */
#define LAYER(theirs, ours, transform)                                                        \
    {                                                                                         \
        "layers\\.(\\d+)\\." theirs "\\.weight", "model.layers.$1." ours ".weight", transform \
    }
static const struct quire_tensor_map maps[] = {
    {"tok_embeddings\\.weight", "model.embed_tokens.weight", QUIRE_AS_IS},
    LAYER("attention_norm", "input_layernorm", QUIRE_AS_IS),
    LAYER("attention\\.wq", "self_attn.q_proj", QUIRE_UNPERMUTE_Q),
    LAYER("attention\\.wk", "self_attn.k_proj", QUIRE_UNPERMUTE_K),
    LAYER("attention\\.wv", "self_attn.v_proj", QUIRE_AS_IS),
    LAYER("attention\\.wo", "self_attn.o_proj", QUIRE_AS_IS),
    LAYER("ffn_norm", "post_attention_layernorm", QUIRE_AS_IS),
    LAYER("feed_forward\\.w1", "mlp.gate_proj", QUIRE_AS_IS),
    LAYER("feed_forward\\.w2", "mlp.down_proj", QUIRE_AS_IS),
    LAYER("feed_forward\\.w3", "mlp.up_proj", QUIRE_AS_IS),
    {"norm\\.weight", "model.norm.weight", QUIRE_AS_IS},
    {"output\\.weight", "lm_head.weight", QUIRE_AS_IS},
};

/* ---- positions ---- */

/* Two operations behind "embed". They see tokens and actions alike, because the rows of items are
 * in place by then. Parameters: row (position / div) % mod of the table. */
static int add_positions(const struct quire_host *host, struct quire_program *p,
                         struct quire_plugin_error *error)
{
    double frame = 0;
    host->config_number(host->program_model(p), "num_spatio_embeddings", &frame);
    const struct quire_op spatio = {
        .size = sizeof spatio,
        .kind = "positions",
        .in = "x",
        .out = "x",
        .weight = "spatio",
        .params = {{"mod", frame}},
    };
    const struct quire_op temporal = {
        .size = sizeof temporal,
        .kind = "positions",
        .in = "x",
        .out = "x",
        .weight = "temporal",
        .params = {{"div", frame}},
    };
    int rc = host->insert_after(p, QUIRE_NO_LAYER, "embed", &spatio, error);
    return rc ? rc : host->insert_after(p, QUIRE_NO_LAYER, "positions", &temporal, error);
}

/* ---- actions ---- */

/* One action [action_dim] becomes one row [hidden_size], which takes the place of the embedding of
 * its placeholder. */
static int embed_action(const struct quire_host *host, const struct quire_model *m,
                        const struct quire_item *item, const struct quire_rows *out,
                        struct quire_plugin_error *error)
{
    const struct quire_rows action = {
        .rows = (float *)item->data,
        .n = 1,
        .n_col = item->dims[0],
        .stride = item->dims[0],
    };
    return host->linear(m, "projection", "projection_bias", &action, out, error);
}

/* The k-th -3 of a prompt is the k-th action. The engine refuses a request whose counts differ, or
 * whose actions have another shape, before it reaches the plugin. */
static const struct quire_modality actions = {
    .size = sizeof actions,
    .name = "actions",
    .part_type = "action",
    .placeholder = -3,
    .dtype = QUIRE_F32,
    .dims = {"action_dim"},
    .n_dim = 1,
    .n_token = "1",
    .max_items = "num_action_embeddings * num_temporal_embeddings",
    .embed_item = embed_action,
};

/* ---- the plugin ---- */

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const struct quire_modality *const modalities[] = {&actions};
static const struct quire_architecture architecture = {
    .size = sizeof architecture,
    .name = "LlamaActionForCausalLM",
    .base = "LlamaForCausalLM",
    .config = config,
    .n_config = COUNT(config),
    .maps = maps,
    .n_map = COUNT(maps),
    .tensors = tensors,
    .n_tensor = COUNT(tensors),
    .modalities = modalities,
    .n_modality = COUNT(modalities),
    .check = check_layout,
    .program = add_positions,
};
static const struct quire_architecture *const architectures[] = {&architecture};

const struct quire_plugin *quire_plugin_1(void)
{
    static const struct quire_plugin plugin = {
        .size = sizeof plugin,
        .abi = QUIRE_PLUGIN_ABI,
        .name = "terra",
        .version = "1.0",
        .architectures = architectures,
        .n_architecture = COUNT(architectures),
    };
    return &plugin;
}
