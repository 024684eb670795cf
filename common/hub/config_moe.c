/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <string.h>

#define WIDTH_MAX (1u << 20) /* as intermediate_size's */

/* Defaults of transformers for absent keys. */
static const struct family {
    const char *model_type;
    uint32_t n_expert, n_used;
    uint32_t width;   /* moe_intermediate_size; 0: no such key, intermediate_size is used */
    uint32_t shared;  /* shared_expert_intermediate_size; 0: the key does not exist */
    bool renormalize; /* norm_topk_prob */
    bool says_so;     /* the key norm_topk_prob exists */
} families[] = {
    {"mixtral", 8, 2, 0, 0, true, false},
    {"olmoe", 64, 8, 0, 0, false, true},
    {"qwen2_moe", 60, 4, 1408, 5632, false, true},
    {"qwen3_moe", 128, 8, 768, 0, false, true},
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
    struct moe_config m = {.renormalize = f->renormalize};
    if ((rc = hub_json_int(&n, at, "num_local_experts", experts, e)) ||
        (rc = hub_json_int(&n, at, "num_experts", experts, e)) ||
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
    c->moe = m;
    return load_layers(c, at, e);
}
