/* SPDX-License-Identifier: Apache-2.0 */
/* Computations that only some families have. Each key is read for the model types that use it, in
 * their spelling; the row contains transformers' default for an absent key. */
#include "common/hub/config_internal.h"
#include <string.h>

struct family {
    const char *model_type;
    const char *act_key, *act; /* act: when act_key is absent */
    const char *eps_key;
    double eps;
    const char *fraction_key; /* part of a head's elements that is rotated; NULL: all */
    double fraction;
    double attention_cap, logit_cap, query_scalar;
    bool has_caps; /* these three are keys of it */
    bool has_multipliers;
    const char *unsupported; /* key of a bool that must be false or absent */
    bool tied, attention_bias, parallel;
};

static const struct family families[] = {
    {
        .model_type = "gemma2",
        .act_key = "hidden_activation",
        .act = "gelu_pytorch_tanh",
        .eps_key = "rms_norm_eps",
        .eps = 1e-6,
        .attention_cap = 50,
        .logit_cap = 30,
        .query_scalar = 256,
        .has_caps = true,
        .tied = true,
    },
    {
        .model_type = "gpt_neox",
        .act_key = "hidden_act",
        .act = "gelu",
        .eps_key = "layer_norm_eps",
        .eps = 1e-5,
        .fraction_key = "rotary_pct",
        .fraction = 0.25,
        .attention_bias = true,
        .parallel = true,
    },
    {
        .model_type = "granite",
        .act_key = "hidden_act",
        .act = "silu",
        .eps_key = "rms_norm_eps",
        .eps = 1e-6,
        .has_multipliers = true,
    },
    {
        .model_type = "phi",
        .act_key = "hidden_act",
        .act = "gelu_new",
        .eps_key = "layer_norm_eps",
        .eps = 1e-5,
        .fraction_key = "partial_rotary_factor",
        .fraction = 0.5,
        .unsupported = "qk_layernorm",
    },
    {
        .model_type = "phi3",
        .act_key = "hidden_act",
        .act = "silu",
        .eps_key = "rms_norm_eps",
        .eps = 1e-5,
        .fraction_key = "partial_rotary_factor",
        .fraction = 1,
    },
    {.act_key = "hidden_act", .act = "silu", .eps_key = "rms_norm_eps", .eps = 1e-6},
};

static const struct family *family_of(const char *model_type)
{
    const struct family *f = families;
    while (f->model_type && strcmp(f->model_type, model_type) != 0)
        f++;
    return f;
}

/* A cap that is null is none. */
static enum q_code load_cap(double *cap, const struct hub_json_at *at, const char *key,
                            struct q_err *e)
{
    if (json_is_null(json_object_get(at->object, key)))
        *cap = 0;
    return hub_json_number(cap, at, key, (struct hub_json_range){1e-3, 1e6}, e);
}

static enum q_code load_caps(struct forward_config *f, const struct family *row,
                             const struct hub_json_at *at, struct q_err *e)
{
    enum q_code rc;
    f->attention_soft_cap = row->attention_cap;
    f->logit_soft_cap = row->logit_cap;
    f->query_scalar = row->query_scalar;
    if (!row->has_caps)
        return Q_OK;
    if ((rc = load_cap(&f->attention_soft_cap, at, "attn_logit_softcapping", e)) ||
        (rc = load_cap(&f->logit_soft_cap, at, "final_logit_softcapping", e)))
        return rc;
    return hub_json_number(&f->query_scalar, at, "query_pre_attn_scalar",
                           (struct hub_json_range){1e-3, 1e6}, e);
}

/* Logits are divided by logits_scaling; without a key each is 1. */
static enum q_code load_multipliers(struct forward_config *f, const struct family *row,
                                    const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range range = {1e-6, 1e6};
    double logits_scaling = 1;
    enum q_code rc;
    if (!row->has_multipliers)
        return Q_OK;
    f->attention_multiplier = f->embedding_multiplier = f->residual_multiplier = 1;
    if ((rc = hub_json_number(&f->attention_multiplier, at, "attention_multiplier", range, e)) ||
        (rc = hub_json_number(&f->embedding_multiplier, at, "embedding_multiplier", range, e)) ||
        (rc = hub_json_number(&f->residual_multiplier, at, "residual_multiplier", range, e)) ||
        (rc = hub_json_number(&logits_scaling, at, "logits_scaling", range, e)))
        return rc;
    f->logit_multiplier = 1 / logits_scaling;
    return Q_OK;
}

static enum q_code check_unsupported(const struct model_config *c, const struct family *row,
                                     const struct hub_json_at *at, struct q_err *e)
{
    bool asked = false;
    const enum q_code rc = row->unsupported ? hub_json_bool(&asked, at, row->unsupported, e) : Q_OK;
    if (rc || !asked)
        return rc;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: %s true is not supported for model_type \"%s\", only false", at->path,
                  row->unsupported, c->model_type);
}

/* The number of rotated elements of a head. Newer configs have it among the rope parameters. */
static enum q_code load_fraction(struct model_config *c, const struct family *row,
                                 const struct hub_json_at *at, struct q_err *e)
{
    static const char newer[] = "partial_rotary_factor";
    const struct hub_json_at rope = {hub_json_find(at, "rope_parameters"), at->path};
    const struct hub_json_range range = {0, 1};
    double fraction = row->fraction_key ? row->fraction : 1;
    enum q_code rc;
    if ((rc = hub_json_number(&fraction, at, newer, range, e)) ||
        (row->fraction_key && (rc = hub_json_number(&fraction, at, row->fraction_key, range, e))) ||
        (json_is_object(rope.object) && (rc = hub_json_number(&fraction, &rope, newer, range, e))))
        return rc;
    if (!row->fraction_key && fraction != 1)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: partial_rotary_factor %g is not supported for model_type \"%s\", only 1",
                      at->path, fraction, c->model_type);
    c->forward.rotary_fraction = fraction;
    const uint32_t n = fraction != 0 ? model_config_n_rot(c) : 0;
    if (n == 0 || n % 2)
        return q_fail(e, Q_CORRUPT,
                      "%s: %s %g of head_dim %u is %u elements to rotate, expected an even number "
                      "from 2 to %u",
                      at->path, row->fraction_key ? row->fraction_key : newer, fraction,
                      c->head_dim, n, c->head_dim);
    return Q_OK;
}

enum q_code config_forward_load(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct family *row = family_of(c->model_type);
    const char *act = row->act;
    enum q_code rc;
    c->rms_norm_eps = row->eps;
    c->tie_word_embeddings = row->tied;
    c->attention_bias = row->attention_bias;
    c->forward.parallel_residual = row->parallel;
    if ((rc = hub_json_str(&act, at, row->act_key, e)) ||
        (rc = hub_json_number(&c->rms_norm_eps, at, row->eps_key, (struct hub_json_range){0, 1},
                              e)) ||
        (rc = hub_json_bool(&c->tie_word_embeddings, at, "tie_word_embeddings", e)) ||
        (rc = hub_json_bool(&c->attention_bias, at, "attention_bias", e)) ||
        (rc = hub_json_bool(&c->mlp_bias, at, "mlp_bias", e)) ||
        (rc = hub_json_bool(&c->forward.parallel_residual, at, "use_parallel_residual", e)) ||
        (rc = check_unsupported(c, row, at, e)) || (rc = load_caps(&c->forward, row, at, e)) ||
        (rc = load_multipliers(&c->forward, row, at, e)) || (rc = load_fraction(c, row, at, e)))
        return rc;
    c->attention_out_bias = c->attention_bias;
    if (strlen(act) >= CONFIG_NAME_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu characters, at most %u are accepted", at->path,
                      row->act_key, strlen(act), CONFIG_NAME_MAX - 1);
    memcpy(c->hidden_act, act, strlen(act) + 1);
    return Q_OK;
}
