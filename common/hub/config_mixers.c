/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <string.h>

#define CONV_MAX  8u         /* rows that a convolution sums */
#define DELTA_MAX 256u       /* elements of a head */
#define WIDTH_MAX (1u << 20) /* as intermediate_size's */

static const struct family {
    const char *model_type;
    const char *type; /* of layer_types: layers that have the mixer */
    enum layer_mixer mixer;
    const char *list_key; /* without layer_types: the numbers of layers with attention */
    const char *conv_key, *conv_bias_key;
    uint32_t conv_width; /* when absent */
    /* Without layer_types: each layer that the key's number divides, from 1, has attention. */
    const char *interval_key;
    uint32_t interval; /* when absent */
} families[] = {
    {"lfm2", "conv", MIXER_CONV, "full_attn_idxs", "conv_L_cache", "conv_bias", 3, NULL, 0},
    {"qwen3_next", "linear_attention", MIXER_DELTA, NULL, "linear_conv_kernel_dim", NULL, 4,
     "full_attention_interval", 4},
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

static enum q_code layers_by_type(struct model_config *c, const struct family *f,
                                  const json_t *types, const struct hub_json_at *at,
                                  struct q_err *e)
{
    if (json_array_size(types) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: layer_types has %zu entries, expected num_hidden_layers = %u", at->path,
                      json_array_size(types), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || (strcmp(type, f->type) != 0 && strcmp(type, "full_attention") != 0))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: layer_types[%u] is \"%.40s\", expected full_attention or %s",
                          at->path, i, type ? type : "?", f->type);
        c->mixer.layers[i] = strcmp(type, f->type) == 0 ? f->mixer : MIXER_ATTENTION;
    }
    return Q_OK;
}

/* Without the list all layers have attention. */
static enum q_code layers_by_list(struct model_config *c, const struct family *f,
                                  const struct hub_json_at *at, struct q_err *e)
{
    const json_t *list = hub_json_find(at, f->list_key);
    if (list && !json_is_array(list))
        return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected a list of layer numbers", at->path,
                      f->list_key, hub_json_kind(list));
    for (uint32_t i = 0; i < c->n_layer && list; i++)
        c->mixer.layers[i] = f->mixer;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layer)
            return q_fail(e, Q_CORRUPT, "%s: %s[%zu] is %s, expected a layer number below %u",
                          at->path, f->list_key, i,
                          json_is_integer(layer) ? "no layer" : hub_json_kind(layer), c->n_layer);
        c->mixer.layers[json_integer_value(layer)] = MIXER_ATTENTION;
    }
    return Q_OK;
}

static enum q_code layers_by_interval(struct model_config *c, const struct family *f,
                                      const struct hub_json_at *at, struct q_err *e)
{
    int64_t interval = f->interval;
    const enum q_code rc = hub_json_int(&interval, at, f->interval_key,
                                        (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e);
    for (uint32_t i = 0; i < c->n_layer && !rc; i++)
        c->mixer.layers[i] = (i + 1) % interval ? f->mixer : MIXER_ATTENTION;
    return rc;
}

/* Heads of a delta net. */
static enum q_code load_delta(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    struct mixer_config *m = &c->mixer;
    const struct {
        const char *key;
        uint32_t *out;
        uint32_t absent, max;
    } sizes[] = {
        {"linear_num_key_heads", &m->n_key_head, 16, 1u << 12},
        {"linear_num_value_heads", &m->n_value_head, 32, 1u << 12},
        {"linear_key_head_dim", &m->key_dim, 128, DELTA_MAX},
        {"linear_value_head_dim", &m->value_dim, 128, DELTA_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i].absent;
        const enum q_code rc =
            hub_json_int(&n, at, sizes[i].key, (struct hub_json_range){1, sizes[i].max}, e);
        if (rc)
            return rc;
        *sizes[i].out = (uint32_t)n;
    }
    if (m->n_value_head % m->n_key_head)
        return q_fail(e, Q_CORRUPT,
                      "%s: linear_num_value_heads %u is not a multiple of linear_num_key_heads %u",
                      at->path, m->n_value_head, m->n_key_head);
    return Q_OK;
}

/* LFM2: two thirds of the number, times a factor, rounded up to a multiple. */
static enum q_code adjust_width(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct hub_json_range any = {1, WIDTH_MAX};
    int64_t width = c->intermediate_size, multiple = 256;
    double factor = 1;
    bool adjusts = true;
    enum q_code rc;
    if ((rc = hub_json_int(&width, at, "block_ff_dim", any, e)) ||
        (rc = hub_json_bool(&adjusts, at, "block_auto_adjust_ff_dim", e)) ||
        (rc = hub_json_number(&factor, at, "block_ffn_dim_multiplier",
                              (struct hub_json_range){1e-3, 1e3}, e)) ||
        (rc = hub_json_int(&multiple, at, "block_multiple_of", any, e)))
        return rc;
    if (adjusts) {
        const int64_t part = 2 * width / 3;
        width = (int64_t)(factor * (double)part);
        width = (width + multiple - 1) / multiple * multiple;
    }
    if (width < 1 || width > WIDTH_MAX)
        return q_fail(e, Q_CORRUPT,
                      "%s: block_ff_dim with block_ffn_dim_multiplier and block_multiple_of gives "
                      "an MLP of %lld columns, expected 1 to %u",
                      at->path, (long long)width, WIDTH_MAX);
    c->intermediate_size = (uint32_t)width;
    return Q_OK;
}

enum q_code config_mixers_load(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    const json_t *types = hub_json_find(at, "layer_types");
    enum q_code rc;
    if (!f)
        return Q_OK;
    int64_t width = f->conv_width;
    rc = types             ? layers_by_type(c, f, types, at, e)
         : f->interval_key ? layers_by_interval(c, f, at, e)
                           : layers_by_list(c, f, at, e);
    if (rc ||
        (rc = hub_json_int(&width, at, f->conv_key, (struct hub_json_range){2, CONV_MAX}, e)) ||
        (f->conv_bias_key && (rc = hub_json_bool(&c->mixer.conv_bias, at, f->conv_bias_key, e))))
        return rc;
    c->mixer.conv_width = (uint32_t)width;
    return f->mixer == MIXER_CONV ? adjust_width(c, at, e) : load_delta(c, at, e);
}
