/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <string.h>

#define WIDTH_MAX  (1u << 20) /* as intermediate_size's */
#define GROUPS_MAX 64u        /* of experts */

/* How a config says which layers have experts. */
enum layer_rule {
    BY_STEP,       /* decoder_sparse_step, mlp_only_layers */
    BEHIND_DENSE,  /* first_k_dense_replace or num_dense_layers, moe_layer_freq */
    BY_TYPE,       /* mlp_layer_types, else the same */
    BY_INTERVAL,   /* moe_layer_start_index, moe_layer_end_index, moe_layer_interval */
    BY_INTERLEAVE, /* moe_layers, else interleave_moe_layer_step */
    BY_PERIOD,     /* expert_layer_period, expert_layer_offset */
    BY_MIXER,      /* those that config_mixers.c has found */
};

struct names { /* of keys; NULL: there is none */
    const char *n_expert, *n_used, *width, *shared_width, *n_shared;
    const char *scale;  /* in place of routed_scaling_factor */
    const char *latent; /* the columns that experts read and write */
};

/* Defaults of transformers for absent keys. */
struct family {
    const char *model_type;
    struct names names; /* beside the usual ones */
    uint32_t n_expert, n_used;
    uint32_t width;     /* 0: no such key, intermediate_size is used */
    uint32_t shared;    /* of the key shared_width; 0: the layer has no shared expert by it */
    uint32_t n_shared;  /* shared experts of `width`, which are one expert of the sum of it */
    bool shared_of_mlp; /* these have intermediate_size instead */
    bool mlp_of_shared; /* a model without experts has an MLP of the shared expert's width */
    bool renormalize;   /* norm_topk_prob */
    bool says_so;       /* the key norm_topk_prob exists */
    enum layer_rule layers;
    uint32_t n_dense; /* first_k_dense_replace, moe_layer_start_index */
    struct {          /* n_group 0: its keys do not exist */
        uint32_t n_group, n_group_used;
        double scale;
        bool sigmoid; /* scoring_func and topk_method are V3's */
    } groups;
    bool one_group;         /* groups are chosen by a rule that is not supported */
    const char *switch_key; /* there are experts where it is true; NULL: there is no such key */
    const char *norm_key;   /* 1: weights are divided by their sum; null: they are not */
    bool clips;             /* q, k and v may be limited */
    double mixer;           /* router_jitter_noise of a sparse mixer; 0: it has none */
    bool says_more;         /* which weights, what becomes of the shared expert, the width of layers
                               without experts, and whether these are rotated: cohere2_moe */
};

#define DEEPSEEK_NAMES                                                 \
    {                                                                  \
        .n_expert = "n_routed_experts", .n_shared = "n_shared_experts" \
    }

static const struct family families[] = {
    {
        .model_type = "afmoe",
        .names = {.n_shared = "num_shared_experts", .scale = "route_scale"},
        .n_expert = 64,
        .n_used = 6,
        .width = 1408,
        .n_shared = 2,
        .renormalize = true,
        .layers = BEHIND_DENSE,
        .n_dense = 1,
        .groups = {1, 1, 1, true},
    },
    {
        .model_type = "cohere2_moe",
        .names = {.n_shared = "num_shared_experts"},
        .n_expert = 8,
        .n_used = 2,
        .renormalize = true,
        .says_so = true,
        .layers = BY_TYPE,
        .says_more = true,
    },
    {
        .model_type = "dbrx",
        .names = {.n_expert = "moe_num_experts", .n_used = "moe_top_k"},
        .n_expert = 4,
        .n_used = 1,
        .renormalize = true,
        .norm_key = "moe_normalize_expert_weights",
        .clips = true,
    },
    {
        .model_type = "deepseek_v2",
        .names = DEEPSEEK_NAMES,
        .n_expert = 64,
        .n_used = 6,
        .width = 1407,
        .n_shared = 2, /* norm_topk_prob has no effect */
        .layers = BEHIND_DENSE,
        .groups = {1, 1, 1, false},
    },
    {
        .model_type = "deepseek_v3",
        .names = DEEPSEEK_NAMES,
        .n_expert = 256,
        .n_used = 8,
        .width = 2048,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .layers = BEHIND_DENSE,
        .n_dense = 3,
        .groups = {8, 4, 2.5, true},
    },
    {
        .model_type = "dots1",
        .names = DEEPSEEK_NAMES,
        .width = 1408,
        .says_so = true,
        .layers = BEHIND_DENSE,
        .groups = {1, 1, 1, true},
    },
    {
        .model_type = "ernie4_5_moe",
        .names = {"moe_num_experts", "moe_k", NULL, NULL, "moe_num_shared_experts", NULL, NULL},
        .n_expert = 64,
        .n_used = 6,
        .width = 1536,
        .n_shared = 2,
        .renormalize = true,
        .layers = BY_INTERVAL,
        .n_dense = 1,
    },
    {
        .model_type = "exaone_moe",
        .names = {.n_shared = "num_shared_experts"},
        .n_expert = 64,
        .n_used = 8,
        .width = 1024,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .layers = BY_TYPE,
        .n_dense = 1,
        .groups = {1, 1, 2.5, true},
    },
    {.model_type = "flex_olmo", .n_expert = 7, .n_used = 5, .says_so = true},
    {
        .model_type = "gemma4_text",
        .names = {.n_used = "top_k_experts", .width = "moe_intermediate_size"},
        .renormalize = true,
        .switch_key = "enable_moe_block",
    },
    {
        .model_type = "glm4_moe",
        .names = DEEPSEEK_NAMES,
        .n_expert = 128,
        .n_used = 8,
        .width = 1408,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .layers = BEHIND_DENSE,
        .n_dense = 1,
        .groups = {1, 1, 1, true},
    },
    {
        .model_type = "glm4_moe_lite",
        .names = DEEPSEEK_NAMES,
        .n_expert = 64,
        .n_used = 4,
        .width = 1536,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .layers = BY_TYPE,
        .n_dense = 1,
        .groups = {1, 1, 1.8, true},
    },
    {.model_type = "gpt_oss", .n_expert = 128, .n_used = 4, .renormalize = true},
    {.model_type = "granitemoe", .n_expert = 8, .n_used = 2, .renormalize = true},
    {
        .model_type = "granitemoe_swa",
        .names = {.shared_width = "shared_intermediate_size"},
        .n_expert = 8,
        .n_used = 2,
        .renormalize = true,
    },
    {
        .model_type = "granitemoehybrid",
        .names = {.shared_width = "shared_intermediate_size"},
        .n_expert = 8,
        .n_used = 2,
        .shared = 1024,
        .mlp_of_shared = true,
        .renormalize = true,
    },
    {
        .model_type = "granitemoeshared",
        .names = {.shared_width = "shared_intermediate_size"},
        .n_expert = 8,
        .n_used = 2,
        .renormalize = true,
    },
    {
        .model_type = "hunyuan_v1_moe",
        .names = {NULL, "moe_topk", "moe_intermediate_size", NULL, "num_shared_expert", NULL, NULL},
        .n_expert = 1,
        .n_used = 1,
        .n_shared = 1,
        .shared_of_mlp = true,
        .renormalize = true,
    },
    {
        .model_type = "hy_v3",
        .names = {.n_shared = "num_shared_experts", .scale = "router_scaling_factor"},
        .n_expert = 192,
        .n_used = 8,
        .width = 1536,
        .n_shared = 1,
        .renormalize = true,
        .layers = BY_TYPE,
        .n_dense = 1,
        .groups = {1, 1, 2.826, true},
    },
    {.model_type = "jamba", .n_expert = 16, .n_used = 2, .layers = BY_PERIOD},
    {
        .model_type = "lfm2_moe",
        .n_expert = 32,
        .n_used = 4,
        .width = 1792,
        .renormalize = true,
        .says_so = true,
        .layers = BEHIND_DENSE,
        .n_dense = 2,
        .groups = {1, 1, 1, true},
    },
    {
        .model_type = "llama4_text",
        .names = {.width = "intermediate_size"},
        .n_expert = 16,
        .n_used = 1,
        .width = 8192,
        .n_shared = 1,
        .layers = BY_INTERLEAVE,
    },
    {
        .model_type = "mellum",
        .n_expert = 64,
        .n_used = 8,
        .width = 896,
        .renormalize = true,
        .says_so = true,
        .layers = BY_TYPE,
    },
    {
        .model_type = "mimo_v2_flash",
        .names = {.n_expert = "n_routed_experts"},
        .n_expert = 256,
        .n_used = 8,
        .width = 2048,
        .renormalize = true,
        .says_so = true,
        .layers = BY_TYPE,
        .n_dense = 1,
        .groups = {1, 1, 1, true},
    },
    {.model_type = "minimax", .n_expert = 8, .n_used = 2, .renormalize = true},
    {.model_type = "minimax_m2", .n_expert = 256, .n_used = 8, .renormalize = true},
    {
        .model_type = "mistral4",
        .names = DEEPSEEK_NAMES,
        .n_expert = 128,
        .n_used = 4,
        .width = 2048,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .layers = BEHIND_DENSE,
        .groups = {1, 1, 1, false},
        .one_group = true,
    },
    {.model_type = "mixtral", .n_expert = 8, .n_used = 2, .renormalize = true},
    {
        .model_type = "nemotron_h",
        .names =
            {
                .n_expert = "n_routed_experts",
                .shared_width = "moe_shared_expert_intermediate_size",
                .latent = "moe_latent_size",
            },
        .n_expert = 8,
        .n_used = 2,
        .width = 7688,
        .shared = 7688,
        .renormalize = true,
        .says_so = true,
        .layers = BY_MIXER,
        .groups = {1, 1, 1, true},
    },
    {.model_type = "olmoe", .n_expert = 64, .n_used = 8, .says_so = true, .clips = true},
    {.model_type = "phimoe", .n_expert = 16, .n_used = 2, .mixer = 0.01},
    {
        .model_type = "qwen2_moe",
        .names = {.shared_width = "shared_expert_intermediate_size"},
        .n_expert = 60,
        .n_used = 4,
        .width = 1408,
        .shared = 5632,
        .says_so = true,
    },
    {.model_type = "qwen3_moe", .n_expert = 128, .n_used = 8, .width = 768, .says_so = true},
    {
        .model_type = "qwen3_5_moe_text",
        .names = {.shared_width = "shared_expert_intermediate_size"},
        .n_expert = 256,
        .n_used = 8,
        .width = 512,
        .shared = 512,
        .renormalize = true,
    },
    {
        .model_type = "qwen3_next",
        .names = {.shared_width = "shared_expert_intermediate_size"},
        .n_expert = 512,
        .n_used = 10,
        .width = 512,
        .shared = 512,
        .renormalize = true,
        .says_so = true,
    },
    {
        .model_type = "solar_open",
        .names = DEEPSEEK_NAMES,
        .n_expert = 128,
        .n_used = 8,
        .width = 1280,
        .n_shared = 1,
        .renormalize = true,
        .says_so = true,
        .groups = {1, 1, 1, true},
    },
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

/* A number, or a list of a number for each layer, which must be one and the same. key NULL: none.
 * Absent: *value is not changed. */
static enum q_code read_count(int64_t *value, const struct hub_json_at *at, const char *key,
                              struct hub_json_range range, struct q_err *e)
{
    const json_t *list = key ? hub_json_find(at, key) : NULL;
    if (!list)
        return Q_OK;
    if (!json_is_array(list))
        return hub_json_int(value, at, key, range, e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (!json_is_integer(one) || !((double)json_integer_value(one) >= range.min) ||
            !((double)json_integer_value(one) <= range.max))
            return q_fail(e, Q_CORRUPT, "%s: %s[%zu] is %s, expected a whole number from %g to %g",
                          at->path, key, i,
                          json_is_integer(one) ? "out of range" : hub_json_kind(one), range.min,
                          range.max);
        if (!json_equal(one, json_array_get(list, 0)))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: %s differs from layer to layer, which is not supported", at->path,
                          key);
        *value = json_integer_value(one);
    }
    return Q_OK;
}

/* ---- which layers ---- */

/* Layers listed in mlp_only_layers, and layers that decoder_sparse_step skips, have no experts. */
static enum q_code load_by_step(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    int64_t step = 1;
    const json_t *dense = hub_json_find(at, "mlp_only_layers");
    enum q_code rc = hub_json_int(&step, at, "decoder_sparse_step",
                                  (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e);
    if (rc)
        return rc;
    if (dense && !json_is_array(dense))
        return q_fail(e, Q_CORRUPT, "%s: mlp_only_layers is %s, expected a list of layer numbers",
                      at->path, hub_json_kind(dense));
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = (i + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0)
            return q_fail(e, Q_CORRUPT, "%s: mlp_only_layers[%zu] is %s, expected a layer number",
                          at->path, i, json_is_integer(layer) ? "below 0" : hub_json_kind(layer));
        if (json_integer_value(layer) <
            c->n_layer) /* further layers have no effect, as in transformers */
            c->moe.layers[json_integer_value(layer)] = false;
    }
    return Q_OK;
}

/* first_k_dense_replace layers have no experts, then every moe_layer_freq-th has. */
static enum q_code load_behind_dense(struct model_config *c, const struct family *f,
                                     const struct hub_json_at *at, struct q_err *e)
{
    int64_t n_dense = f->n_dense, every = 1;
    enum q_code rc;
    if ((rc = hub_json_int(&n_dense, at, "first_k_dense_replace",
                           (struct hub_json_range){0, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&n_dense, at, "num_dense_layers",
                           (struct hub_json_range){0, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&every, at, "moe_layer_freq",
                           (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e)))
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = i >= n_dense && i % every == 0;
    return Q_OK;
}

/* moe_layer_freq as a list: 1 for a layer with experts. */
static enum q_code load_by_list(struct model_config *c, const json_t *list,
                                const struct hub_json_at *at, struct q_err *e)
{
    if (json_array_size(list) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: moe_layer_freq has %zu entries, expected num_hidden_layers = %u",
                      at->path, json_array_size(list), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1)
            return q_fail(e, Q_CORRUPT, "%s: moe_layer_freq[%u] is %s, expected 0 or 1", at->path,
                          i, json_is_integer(v) ? "out of range" : hub_json_kind(v));
        c->moe.layers[i] = json_integer_value(v) == 1;
    }
    return Q_OK;
}

static enum q_code load_by_type(struct model_config *c, const struct family *f,
                                const struct hub_json_at *at, struct q_err *e)
{
    static const char key[] = "mlp_layer_types";
    const json_t *types = hub_json_find(at, key);
    const json_t *list = hub_json_find(at, "moe_layer_freq");
    if (!types && json_is_array(list))
        return load_by_list(c, list, at, e);
    if (!types)
        return load_behind_dense(c, f, at, e);
    if (json_array_size(types) != c->n_layer)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu entries, expected num_hidden_layers = %u",
                      at->path, key, json_array_size(types), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        c->moe.layers[i] = type && strcmp(type, "sparse") == 0;
        if (!type || (!c->moe.layers[i] && strcmp(type, "dense") != 0))
            return q_fail(e, Q_UNSUPPORTED, "%s: %s[%u] is \"%.40s\", expected dense or sparse",
                          at->path, key, i, type ? type : "?");
    }
    return Q_OK;
}

/* From the first layer to the last (-1: of all), each one a multiple of the interval from the
 * begin. */
static enum q_code load_by_interval(struct model_config *c, const struct family *f,
                                    const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range layers = {0, CONFIG_LAYERS_MAX}, steps = {1, CONFIG_LAYERS_MAX};
    int64_t first = f->n_dense, last = -1, interval = 1;
    enum q_code rc;
    if ((rc = read_count(&first, at, "moe_layer_start_index", layers, e)) ||
        (rc = read_count(&last, at, "moe_layer_end_index",
                         (struct hub_json_range){-1, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&interval, at, "moe_layer_interval", steps, e)))
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = i >= first && (last < 0 || i <= last) && (i + 1) % interval == 0;
    return Q_OK;
}

static enum q_code load_by_interleave(struct model_config *c, const struct hub_json_at *at,
                                      struct q_err *e)
{
    const json_t *list = hub_json_find(at, "moe_layers");
    int64_t step = 1;
    enum q_code rc = hub_json_int(&step, at, "interleave_moe_layer_step",
                                  (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e);
    if (rc)
        return rc;
    if (list && !json_is_array(list))
        return q_fail(e, Q_CORRUPT, "%s: moe_layers is %s, expected a list of layer numbers",
                      at->path, hub_json_kind(list));
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = !list && (i + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t n = json_integer_value(layer);
        if (!json_is_integer(layer) || n < 0 || n >= c->n_layer)
            return q_fail(e, Q_CORRUPT,
                          "%s: moe_layers[%zu] is %s, expected a layer number below %u", at->path,
                          i, json_is_integer(layer) ? "out of range" : hub_json_kind(layer),
                          c->n_layer);
        c->moe.layers[n] = true;
    }
    return Q_OK;
}

/* Jamba's defaults. */
static enum q_code load_by_period(struct model_config *c, const struct hub_json_at *at,
                                  struct q_err *e)
{
    int64_t period = 2, offset = 1;
    enum q_code rc;
    if ((rc = hub_json_int(&period, at, "expert_layer_period",
                           (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&offset, at, "expert_layer_offset",
                           (struct hub_json_range){0, CONFIG_LAYERS_MAX}, e)))
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = i % period == offset;
    return Q_OK;
}

static enum q_code load_layers(struct model_config *c, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    switch (f->layers) {
    case BEHIND_DENSE:
        return load_behind_dense(c, f, at, e);
    case BY_TYPE:
        return load_by_type(c, f, at, e);
    case BY_INTERVAL:
        return load_by_interval(c, f, at, e);
    case BY_INTERLEAVE:
        return load_by_interleave(c, at, e);
    case BY_PERIOD:
        return load_by_period(c, at, e);
    case BY_MIXER:
        memcpy(c->moe.layers, c->mixer.experts, sizeof c->moe.layers);
        return Q_OK;
    default:
        return load_by_step(c, at, e);
    }
}

/* ---- groups ---- */

/* topk_method and scoring_func are the family's: other values would be another computation. */
static enum q_code check_routing(const struct model_config *c, const struct hub_json_at *at,
                                 bool is_v3, bool has_groups, struct q_err *e)
{
    const char *scoring = is_v3 ? "sigmoid" : "softmax", *found = scoring;
    const char *method = is_v3 ? "noaux_tc" : has_groups ? "group_limited_greedy" : "greedy";
    const char *given = method;
    enum q_code rc;
    if ((rc = hub_json_str(&found, at, "scoring_func", e)) ||
        (rc = hub_json_str(&given, at, "topk_method", e)))
        return rc;
    if (strcmp(found, scoring) != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: scoring_func \"%.40s\" is not supported for model_type \"%s\", only "
                      "\"%s\"",
                      at->path, found, c->model_type, scoring);
    if (strcmp(given, method) != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: topk_method \"%.40s\" is not supported for model_type \"%s\"%s, only "
                      "\"%s\"",
                      at->path, given, c->model_type, has_groups ? " with n_group above 1" : "",
                      method);
    return Q_OK;
}

/* Groups of experts, and the scale of their weights. */
static enum q_code load_groups(struct model_config *c, const struct family *f, struct moe_config *m,
                               const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range some = {1, CONFIG_EXPERTS_MAX};
    int64_t n_group = f->groups.n_group, n_group_used = f->groups.n_group_used;
    enum q_code rc;
    m->scale = f->groups.scale;
    if ((rc = hub_json_int(&n_group, at, "n_group", some, e)) ||
        (rc = hub_json_int(&n_group_used, at, "topk_group", some, e)) ||
        (rc = hub_json_number(&m->scale, at,
                              f->names.scale ? f->names.scale : "routed_scaling_factor",
                              (struct hub_json_range){1e-6, 1e6}, e)) ||
        (rc = check_routing(c, at, f->groups.sigmoid, n_group > 1, e)))
        return rc;
    if (n_group > 1 && f->one_group)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: n_group %lld is not supported for model_type \"%s\", only 1", at->path,
                      (long long)n_group, c->model_type);
    if (n_group > GROUPS_MAX || m->n_expert % n_group || n_group_used > n_group ||
        (n_group > 1 && m->n_used > m->n_expert / n_group * n_group_used))
        return q_fail(e, Q_CORRUPT,
                      "%s: n_group %lld and topk_group %lld do not suit %u experts of which a "
                      "token uses %u: n_group divides the experts (at most %u groups), and the "
                      "groups used have as many experts as a token uses",
                      at->path, (long long)n_group, (long long)n_group_used, m->n_expert, m->n_used,
                      GROUPS_MAX);
    m->n_group = (uint32_t)n_group;
    m->n_group_used = (uint32_t)n_group_used;
    return Q_OK;
}

/* ---- the whole ---- */

struct counts {
    int64_t n, used, width, shared, n_shared, latent;
};

/* Experts, how many of them a token uses, and their widths. */
static enum q_code read_counts(struct counts *n, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range any = {0, CONFIG_EXPERTS_MAX}, some = {1, CONFIG_EXPERTS_MAX};
    const struct hub_json_range widths = {1, WIDTH_MAX}, or_none = {0, WIDTH_MAX};
    const struct names *names = &f->names;
    const char *width = names->width ? names->width : f->width ? "moe_intermediate_size" : NULL;
    enum q_code rc;
    if ((rc = read_count(&n->n, at, "num_local_experts", any, e)) ||
        (rc = read_count(&n->n, at, "num_experts", any, e)) ||
        (rc = read_count(&n->n, at, names->n_expert, any, e)) ||
        (rc = read_count(&n->used, at, "num_experts_per_tok", f->mlp_of_shared ? any : some, e)) ||
        (rc = read_count(&n->used, at, names->n_used, some, e)) ||
        (rc = read_count(&n->width, at, width, widths, e)) ||
        (rc = read_count(&n->latent, at, names->latent, widths, e)) ||
        (rc = read_count(&n->n_shared, at, names->n_shared, any, e)))
        return rc;
    return read_count(&n->shared, at, names->shared_width, f->shared ? widths : or_none, e);
}

/* A key of mixtures of experts that this family's computation has no place for. */
static enum q_code check_refused(const struct model_config *c, const struct family *f,
                                 const struct hub_json_at *at, struct q_err *e)
{
    bool cross = false;
    int64_t shared = 0;
    enum q_code rc;
    if (!f->clips && hub_json_find(at, "clip_qkv"))
        return q_fail(e, Q_UNSUPPORTED, "%s: clip_qkv is not supported, expected null", at->path);
    if ((rc = hub_json_bool(&cross, at, "use_cla", e)) ||
        (!f->names.shared_width && (rc = hub_json_int(&shared, at, "shared_intermediate_size",
                                                      (struct hub_json_range){0, WIDTH_MAX}, e))))
        return rc;
    if (cross)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: use_cla true (K and V that layers share) is not supported", at->path);
    if (shared)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: shared_intermediate_size %lld is not supported for model_type \"%s\", "
                      "only 0",
                      at->path, (long long)shared, c->model_type);
    return Q_OK;
}

/* A sparse mixer takes experts whose scores are within twice the noise of training. */
static enum q_code load_mixer(struct moe_config *m, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    double noise = f->mixer;
    const enum q_code rc =
        hub_json_number(&noise, at, "router_jitter_noise", (struct hub_json_range){0, 1}, e);
    if (rc || f->mixer == 0)
        return rc;
    if (m->n_used != 2)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: num_experts_per_tok is %u, a sparse mixer is supported with 2 only",
                      at->path, m->n_used);
    m->mixer = noise > 0 ? 2 * noise : 1e-30; /* 0 would be none: only equal scores are near */
    return Q_OK;
}

/* Weights divided by their p-norm: by that of p = 1, their sum, or not at all. */
static enum q_code load_norm(struct moe_config *m, const struct family *f,
                             const struct hub_json_at *at, struct q_err *e)
{
    const json_t *p = f->norm_key ? json_object_get(at->object, f->norm_key) : NULL;
    if (!p)
        return Q_OK;
    m->renormalize = !json_is_null(p);
    if (json_is_null(p) || (json_is_number(p) && json_number_value(p) == 1))
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED, "%s: %s is not supported, only 1 and null", at->path,
                  f->norm_key);
}

/* One of two texts: is it the second? */
static enum q_code read_choice(bool *second, const struct hub_json_at *at, const char *key,
                               const char *const texts[2], struct q_err *e)
{
    const char *text = texts[0];
    const enum q_code rc = hub_json_str(&text, at, key, e);
    *second = !rc && strcmp(text, texts[1]) == 0;
    if (rc || *second || strcmp(text, texts[0]) == 0)
        return rc;
    return q_fail(e, Q_UNSUPPORTED, "%s: %s \"%.40s\" is not supported, expected %s or %s",
                  at->path, key, text, texts[0], texts[1]);
}

static enum q_code load_choices(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    static const char *const rules[] = {"softmax", "sigmoid"}, *const sums[] = {"average", "sum"};
    struct moe_config *m = &c->moe;
    int64_t width = c->intermediate_size, pattern = 1;
    bool adds;
    enum q_code rc;
    if ((rc = read_choice(&m->sigmoid, at, "expert_selection_fn", rules, e)) ||
        (rc = read_choice(&adds, at, "shared_expert_combination_strategy", sums, e)) ||
        (rc = hub_json_int(&width, at, "prefix_dense_intermediate_size",
                           (struct hub_json_range){1, WIDTH_MAX}, e)) ||
        (rc = hub_json_int(&pattern, at, "prefix_dense_sliding_window_pattern",
                           (struct hub_json_range){1, UINT32_MAX}, e)))
        return rc;
    m->averages = m->shared_width && !adds;
    c->intermediate_size = (uint32_t)width;
    for (uint32_t i = 0; i < c->n_layer && pattern == 1; i++)
        c->no_rope[i] = c->no_rope[i] && m->layers[i];
    return Q_OK;
}

enum q_code config_moe_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    bool is_on = f && !f->switch_key;
    enum q_code rc;
    if (f && f->switch_key && (rc = hub_json_bool(&is_on, at, f->switch_key, e)))
        return rc;
    if (f && f->layers == BY_MIXER)
        is_on = memchr(c->mixer.experts, true, c->n_layer) != NULL;
    if (!is_on)
        return Q_OK;
    struct counts n = {f->n_expert, f->n_used,   f->width ? f->width : c->intermediate_size,
                       f->shared,   f->n_shared, 0};
    struct moe_config m = {.renormalize = f->renormalize, .n_group = 1, .n_group_used = 1};
    if ((rc = check_refused(c, f, at, e)) || (rc = read_counts(&n, f, at, e)) ||
        (f->says_so && (rc = hub_json_bool(&m.renormalize, at, "norm_topk_prob", e))) ||
        (rc = load_norm(&m, f, at, e)))
        return rc;
    if (n.n == 0 && f->mlp_of_shared)
        c->intermediate_size = (uint32_t)n.shared;
    if (n.n == 0 && f->switch_key)
        return q_fail(e, Q_CORRUPT, "%s: %s is true and num_experts is missing or 0", at->path,
                      f->switch_key);
    if (n.n == 0 || (n.n == 1 && f->layers == BY_PERIOD)) /* Jamba: one expert is an MLP */
        return Q_OK;
    if (n.used == 0)
        return q_fail(e, Q_CORRUPT,
                      "%s: num_experts_per_tok is missing, expected a whole number from 1 to %lld",
                      at->path, (long long)n.n);
    if (n.used > n.n)
        return q_fail(e, Q_CORRUPT,
                      "%s: num_experts_per_tok is %lld, expected at most num_experts "
                      "(num_local_experts), %lld",
                      at->path, (long long)n.used, (long long)n.n);
    const int64_t of_shared = f->shared_of_mlp ? c->intermediate_size : n.width;
    if (n.n_shared * of_shared > WIDTH_MAX)
        return q_fail(e, Q_CORRUPT,
                      "%s: %lld shared experts of %lld are wider than %u, the most that is "
                      "accepted",
                      at->path, (long long)n.n_shared, (long long)of_shared, WIDTH_MAX);
    m.n_expert = (uint32_t)n.n;
    m.n_used = (uint32_t)n.used;
    m.width = (uint32_t)n.width;
    m.latent = (uint32_t)n.latent;
    m.shared_width = (uint32_t)(n.n_shared ? n.n_shared * of_shared : n.shared);
    if ((f->groups.n_group && (rc = load_groups(c, f, &m, at, e))) ||
        (rc = load_mixer(&m, f, at, e)))
        return rc;
    c->moe = m;
    if ((rc = load_layers(c, f, at, e)))
        return rc;
    return f->says_more ? load_choices(c, at, e) : Q_OK;
}
