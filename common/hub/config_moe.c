/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <string.h>

#define WIDTH_MAX  (1u << 20) /* as intermediate_size's */
#define GROUPS_MAX 64u        /* of experts */

/* Defaults of transformers for absent keys. */
static const struct family {
    const char *model_type;
    uint32_t n_expert, n_used;
    uint32_t width;   /* moe_intermediate_size; 0: no such key, intermediate_size is used */
    uint32_t shared;  /* shared_expert_intermediate_size; 0: the key does not exist */
    bool renormalize; /* norm_topk_prob */
    bool says_so;     /* the key norm_topk_prob exists */
    bool is_deepseek; /* the keys of DeepSeek's exist: n_routed_experts, n_group, … */
} families[] = {
    {"deepseek_v2", 64, 6, 1407, 0, false, false, true}, /* norm_topk_prob has no effect */
    {"deepseek_v3", 256, 8, 2048, 0, true, true, true},
    {"gpt_oss", 128, 4, 0, 0, true, false, false},
    {"granitemoe", 8, 2, 0, 0, true, false, false},
    {"mixtral", 8, 2, 0, 0, true, false, false},
    {"olmoe", 64, 8, 0, 0, false, true, false},
    {"qwen2_moe", 60, 4, 1408, 5632, false, true, false},
    {"qwen3_moe", 128, 8, 768, 0, false, true, false},
    {"qwen3_next", 512, 10, 512, 512, true, true, false},
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

/* Layers listed in mlp_only_layers, and layers that decoder_sparse_step skips, have no experts. */
static enum q_code load_layers(struct model_config *c, const struct hub_json_at *at,
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

/* topk_method and scoring_func are the family's: other values would be another computation. */
static enum q_code check_routing(const struct model_config *c, const struct hub_json_at *at,
                                 bool has_groups, struct q_err *e)
{
    const bool is_v3 = strcmp(c->model_type, "deepseek_v3") == 0;
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

/* Groups of experts, the scale of their weights, shared experts, dense layers at the begin. */
static enum q_code load_deepseek(struct model_config *c, struct moe_config *m,
                                 const struct hub_json_at *at, struct q_err *e)
{
    const bool is_v3 = strcmp(c->model_type, "deepseek_v3") == 0;
    const struct hub_json_range some = {1, CONFIG_EXPERTS_MAX}, any = {0, CONFIG_EXPERTS_MAX};
    int64_t n_group = is_v3 ? 8 : 1, n_group_used = is_v3 ? 4 : 1, n_shared = is_v3 ? 1 : 2;
    enum q_code rc;
    m->scale = is_v3 ? 2.5 : 1;
    if ((rc = hub_json_int(&n_group, at, "n_group", some, e)) ||
        (rc = hub_json_int(&n_group_used, at, "topk_group", some, e)) ||
        (rc = hub_json_int(&n_shared, at, "n_shared_experts", any, e)) ||
        (rc = hub_json_number(&m->scale, at, "routed_scaling_factor",
                              (struct hub_json_range){1e-6, 1e6}, e)) ||
        (rc = check_routing(c, at, n_group > 1, e)))
        return rc;
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
    m->shared_width = (uint32_t)n_shared * m->width;
    return Q_OK;
}

/* first_k_dense_replace layers have no experts, then every moe_layer_freq-th has. */
static enum q_code load_deepseek_layers(struct model_config *c, const struct hub_json_at *at,
                                        struct q_err *e)
{
    int64_t n_dense = strcmp(c->model_type, "deepseek_v3") == 0 ? 3 : 0, every = 1;
    enum q_code rc;
    if ((rc = hub_json_int(&n_dense, at, "first_k_dense_replace",
                           (struct hub_json_range){0, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&every, at, "moe_layer_freq",
                           (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e)))
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->moe.layers[i] = i >= n_dense && i % every == 0;
    return Q_OK;
}

enum q_code config_moe_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    const struct hub_json_range experts = {0, CONFIG_EXPERTS_MAX}, some = {1, CONFIG_EXPERTS_MAX};
    enum q_code rc;
    if (!f)
        return Q_OK;
    if (hub_json_find(at, "clip_qkv")) /* a key of olmoe; null in published checkpoints */
        return q_fail(e, Q_UNSUPPORTED, "%s: clip_qkv is not supported, expected null", at->path);
    int64_t n = f->n_expert, used = f->n_used, width = f->width ? f->width : c->intermediate_size;
    int64_t shared = f->shared;
    struct moe_config m = {.renormalize = f->renormalize, .n_group = 1, .n_group_used = 1};
    if ((rc = hub_json_int(&n, at, "num_local_experts", experts, e)) ||
        (rc = hub_json_int(&n, at, "num_experts", experts, e)) ||
        (f->is_deepseek && (rc = hub_json_int(&n, at, "n_routed_experts", experts, e))) ||
        (rc = hub_json_int(&used, at, "num_experts_per_tok", some, e)) ||
        (f->width && (rc = hub_json_int(&width, at, "moe_intermediate_size",
                                        (struct hub_json_range){1, WIDTH_MAX}, e))) ||
        (f->shared && (rc = hub_json_int(&shared, at, "shared_expert_intermediate_size",
                                         (struct hub_json_range){1, WIDTH_MAX}, e))) ||
        (f->says_so && (rc = hub_json_bool(&m.renormalize, at, "norm_topk_prob", e))))
        return rc;
    if (n == 0)
        return Q_OK;
    if (used > n)
        return q_fail(e, Q_CORRUPT,
                      "%s: num_experts_per_tok is %lld, expected at most num_experts "
                      "(num_local_experts), %lld",
                      at->path, (long long)used, (long long)n);
    m.n_expert = (uint32_t)n;
    m.n_used = (uint32_t)used;
    m.width = (uint32_t)width;
    m.shared_width = (uint32_t)shared;
    if (f->is_deepseek && (rc = load_deepseek(c, &m, at, e)))
        return rc;
    c->moe = m;
    return f->is_deepseek ? load_deepseek_layers(c, at, e) : load_layers(c, at, e);
}
