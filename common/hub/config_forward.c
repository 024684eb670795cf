/* SPDX-License-Identifier: Apache-2.0 */
/* Computations that only some families have. Each key is read for the model types that use it, in
 * their spelling; the row contains transformers' default for an absent key. */
#include "common/hub/config_internal.h"
#include <math.h>
#include <string.h>

#define REFUSED_MAX 4
#define EMBED_MAX   (1u << 18) /* as hidden_size's */

struct family {
    const char *model_type;
    const char *act_key, *act; /* act: when act_key is absent; without a key it is always */
    const char *eps_key;       /* NULL: it is always eps */
    double eps;
    const char *rms_key;       /* of eps where norms are RMS norms: where it is there */
    const char *newer_eps_key; /* another name of it */
    const char *fraction_key;  /* part of a head's elements that is rotated; NULL: all */
    double fraction;
    const char *rotated_key; /* the same as a number of elements; null: all */
    uint32_t rotated;
    double attention_cap, logit_cap, query_scalar;
    bool has_caps; /* these three are keys of it */
    double attention_multiplier;
    const char *attention_key; /* of it, where it is the only multiplier; absent or null: none */
    const char *root_key; /* the embedding is multiplied by sqrt(hidden_size) where it is true */
    bool root;            /* when absent */
    bool has_multipliers;
    bool multiplies_logits; /* logits_scaling is a factor, not a divisor */
    struct {                /* MiniCPM's multipliers, when their keys are absent; 0: none */
        double embedding, depth, base;
    } mup;
    const char *logit_scale_key; /* logits are multiplied by it */
    double logit_scale;
    const char *glu_limit_key;
    double glu_limit;
    const char *clip_key, *qk_norm_key, *alibi_key, *qkv_bias_key;
    const char *head_bias_key;
    const char *bias_key;                    /* of all biases but those of norms */
    const char *out_bias_key, *mlp_bias_key; /* NULL: as attention_bias; mlp_bias */
    const char *tied_key;     /* NULL: tie_word_embeddings alone; else it is before that */
    const char *parallel_key; /* NULL: use_parallel_residual */
    const char *new_form_key; /* branches are side by side, with two norms or one */
    bool shares_norm;         /* branches that are side by side have one norm */
    struct {                  /* keys of bools that must have another value or be absent */
        const char *key;
        bool value;
    } refused[REFUSED_MAX];
    struct { /* a key that must have this text, or number, or be absent; NULL: there is none */
        const char *key, *text;
        double number;
    } only;
    const char *refused_key; /* of what is not supported: it must be absent, null, false or 0 */
    bool tied, attention_bias, mlp_bias, no_out_bias, parallel;
    const char *post_norms_key; /* default: true */
    const char *before_key;     /* norms are before branches (default: true), or of their sums */
    const char *bare_end_key;   /* norms are before branches, and there is none at the end */
    const char *embed_key;      /* of embed_size; default: hidden_size */
    bool qk_norm;               /* when qk_norm_key is absent */
    bool scales_q; /* q of layers without rope grows with the position, by keys of its own */
};

#define EPS(key, x)    .eps_key = key, .eps = x
#define RMS(x)         EPS("rms_norm_eps", x)
#define LAYER(x)       EPS("layer_norm_eps", x)
#define EPSILON(x)     EPS("layer_norm_epsilon", x)
#define NORM(x)        EPS("norm_eps", x)
#define ACT_OF(key, x) .act_key = key, .act = x
#define ACT(x)         ACT_OF("hidden_act", x)
#define ALWAYS(x)      ACT_OF(NULL, x)
#define SILU           ACT("silu")

static const struct family families[] = {
#define FAMILY(type, ...) {.model_type = #type, __VA_ARGS__},
#include "common/hub/config_forward.def"
    {RMS(1e-6), SILU}, /* every other */
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
    f->attention_multiplier = row->multiplies_logits ? 0 : 1; /* 0: as head_dim says */
    f->embedding_multiplier = f->residual_multiplier = 1;
    if ((rc = hub_json_number(&f->attention_multiplier, at, "attention_multiplier", range, e)) ||
        (rc = hub_json_number(&f->embedding_multiplier, at, "embedding_multiplier", range, e)) ||
        (rc = hub_json_number(&f->residual_multiplier, at, "residual_multiplier", range, e)) ||
        (rc = hub_json_number(&logits_scaling, at, "logits_scaling", range, e)))
        return rc;
    f->logit_multiplier = row->multiplies_logits ? logits_scaling : 1 / logits_scaling;
    return Q_OK;
}

/* The embedding's and the scores' alone. */
static enum q_code load_few_multipliers(struct model_config *c, const struct family *row,
                                        const struct hub_json_at *at, struct q_err *e)
{
    struct forward_config *f = &c->forward;
    bool root = row->root;
    enum q_code rc;
    if (row->attention_key &&
        (rc = hub_json_number(&f->attention_multiplier, at, row->attention_key,
                              (struct hub_json_range){1e-6, 1e6}, e)))
        return rc;
    if (!row->root_key || (rc = hub_json_bool(&root, at, row->root_key, e)))
        return row->root_key ? rc : Q_OK;
    f->embedding_multiplier = root ? sqrt(c->hidden_size) : 1;
    return Q_OK;
}

/* A multiplier that is null is left out, which is what `none` does. */
static enum q_code load_multiplier(double *out, double none, const struct hub_json_at *at,
                                   const char *key, struct q_err *e)
{
    if (json_is_null(json_object_get(at->object, key)))
        *out = none;
    return hub_json_number(out, at, key, (struct hub_json_range){1e-6, 1e6}, e);
}

/* MiniCPM: branches by scale_depth / sqrt(layers), logits by dim_model_base / hidden_size. */
static enum q_code load_mup(struct model_config *c, const struct family *row,
                            const struct hub_json_at *at, struct q_err *e)
{
    struct forward_config *f = &c->forward;
    const double root = sqrt(c->n_layer);
    double embedding = row->mup.embedding, depth = row->mup.depth, base = row->mup.base;
    enum q_code rc;
    if (row->mup.embedding == 0)
        return Q_OK;
    if ((rc = load_multiplier(&embedding, 1, at, "scale_emb", e)) ||
        (rc = load_multiplier(&depth, root, at, "scale_depth", e)) ||
        (rc = load_multiplier(&base, c->hidden_size, at, "dim_model_base", e)))
        return rc;
    f->embedding_multiplier = embedding;
    f->residual_multiplier = depth / root;
    f->logit_multiplier = base / c->hidden_size;
    return Q_OK;
}

/* Baichuan: the 13B says no max_position_embeddings and has slopes; Baichuan 2 says what its head
 * was trained with. */
static void load_baichuan(struct model_config *c, const struct hub_json_at *at)
{
    if (strcmp(c->model_type, "baichuan") != 0)
        return;
    c->forward.alibi = !hub_json_find(at, "max_position_embeddings");
    c->forward.unit_head = hub_json_find(at, "z_loss_weight") || c->vocab_size == 125696;
}

static enum q_code check_only(const struct model_config *c, const struct family *row,
                              const struct hub_json_at *at, struct q_err *e)
{
    const char *text = row->only.text;
    double number = row->only.number;
    enum q_code rc;
    if (!row->only.key)
        return Q_OK;
    if ((rc = text ? hub_json_str(&text, at, row->only.key, e)
                   : hub_json_number(&number, at, row->only.key, (struct hub_json_range){-1e6, 1e6},
                                     e)))
        return rc;
    if (text && strcmp(text, row->only.text) != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: %s \"%.40s\" is not supported for model_type \"%s\", only \"%s\"",
                      at->path, row->only.key, text, c->model_type, row->only.text);
    if (!text && fabs(number - row->only.number) > 1e-9)
        return q_fail(e, Q_UNSUPPORTED, "%s: %s %g is not supported for model_type \"%s\", only %g",
                      at->path, row->only.key, number, c->model_type, row->only.number);
    return Q_OK;
}

static enum q_code check_refused(const struct model_config *c, const struct family *row,
                                 const struct hub_json_at *at, struct q_err *e)
{
    const json_t *other = row->refused_key ? hub_json_find(at, row->refused_key) : NULL;
    if (other && !json_is_false(other) && !(json_is_number(other) && json_number_value(other) == 0))
        return q_fail(e, Q_UNSUPPORTED, "%s: %s is not supported for model_type \"%s\"", at->path,
                      row->refused_key, c->model_type);
    for (size_t i = 0; i < REFUSED_MAX && row->refused[i].key; i++) {
        const bool value = row->refused[i].value;
        bool asked = !value;
        const enum q_code rc = hub_json_bool(&asked, at, row->refused[i].key, e);
        if (rc)
            return rc;
        if (asked == value)
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: %s %s is not supported for model_type \"%s\", only %s", at->path,
                          row->refused[i].key, value ? "true" : "false", c->model_type,
                          value ? "false" : "true");
    }
    return Q_OK;
}

/* A key of few families; NULL: none. */
static enum q_code load_flag(bool *out, const char *key, const struct hub_json_at *at,
                             struct q_err *e)
{
    return key ? hub_json_bool(out, at, key, e) : Q_OK;
}

static enum q_code load_limits(struct forward_config *f, const struct family *row,
                               const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range range = {1e-6, 1e6};
    enum q_code rc = Q_OK;
    f->glu_limit = row->glu_limit;
    if (row->glu_limit_key &&
        (rc = hub_json_number(&f->glu_limit, at, row->glu_limit_key, range, e)))
        return rc;
    if (row->logit_scale_key) {
        f->logit_multiplier = row->logit_scale;
        rc = hub_json_number(&f->logit_multiplier, at, row->logit_scale_key, range, e);
    }
    return rc || !row->clip_key ? rc : hub_json_number(&f->clip, at, row->clip_key, range, e);
}

/* OPT: where norms are, and how wide the embedding is. Norms of sums need none behind them. */
static enum q_code load_ends(struct model_config *c, const struct family *row,
                             const struct hub_json_at *at, struct q_err *e)
{
    bool before = true, bare = false;
    int64_t n = c->hidden_size;
    enum q_code rc;
    if ((rc = load_flag(&before, row->before_key, at, e)) ||
        (rc = load_flag(&bare, row->bare_end_key, at, e)) ||
        (row->embed_key &&
         (rc = hub_json_int(&n, at, row->embed_key, (struct hub_json_range){1, EMBED_MAX}, e))))
        return rc;
    c->forward.sum_norms = !before;
    c->forward.bare_end = !before || bare;
    c->embed_size = n == c->hidden_size ? 0 : (uint32_t)n;
    return Q_OK;
}

/* Biases, branches side by side and their norms, norms of q and k. */
static enum q_code load_flags(struct model_config *c, const struct family *row,
                              const struct hub_json_at *at, struct q_err *e)
{
    const char *parallel_key = row->parallel_key ? row->parallel_key : "use_parallel_residual";
    struct forward_config *f = &c->forward;
    int64_t n_norm = 2;
    bool new_form = false;
    enum q_code rc;
    if ((rc = hub_json_bool(&c->tie_word_embeddings, at, "tie_word_embeddings", e)) ||
        (rc = load_flag(&c->tie_word_embeddings, row->tied_key, at, e)) ||
        (rc = hub_json_bool(&c->attention_bias, at, "attention_bias", e)) ||
        (rc = load_flag(&c->attention_bias, row->qkv_bias_key, at, e)) ||
        (rc = load_flag(&c->attention_bias, row->bias_key, at, e)) ||
        (rc = hub_json_bool(&f->parallel_residual, at, parallel_key, e)) ||
        (rc = load_flag(&new_form, row->new_form_key, at, e)) ||
        (rc = load_flag(&f->qk_norm, row->qk_norm_key, at, e)) ||
        (rc = load_flag(&f->alibi, row->alibi_key, at, e)) ||
        (rc = hub_json_int(&n_norm, at, "num_ln_in_parallel_attn", (struct hub_json_range){1, 2},
                           e)))
        return rc;
    c->attention_out_bias = c->attention_bias && !row->no_out_bias;
    c->mlp_bias = row->mlp_bias || (row->bias_key && c->attention_bias);
    if ((rc = load_flag(&c->head_bias, row->head_bias_key, at, e)))
        return rc;
    f->parallel_residual = f->parallel_residual || new_form;
    f->shared_norm = row->shares_norm && f->parallel_residual && !(new_form && n_norm == 2);
    f->post_norms = row->post_norms_key != NULL;
    if ((rc = load_flag(&c->attention_out_bias, row->out_bias_key, at, e)) ||
        (rc = load_flag(&c->mlp_bias, row->mlp_bias_key, at, e)) ||
        (rc = load_flag(&f->post_norms, row->post_norms_key, at, e)))
        return rc;
    return hub_json_bool(&c->mlp_bias, at, "mlp_bias", e);
}

/* Llama 4: in layers without rope. */
static enum q_code load_growth(struct forward_config *f, const struct hub_json_at *at,
                               struct q_err *e)
{
    bool is_on = true;
    double growth = 0.1;
    int64_t length = 8192;
    enum q_code rc;
    if ((rc = hub_json_bool(&is_on, at, "attn_temperature_tuning", e)) ||
        (rc = hub_json_number(&growth, at, "attn_scale", (struct hub_json_range){-1e6, 1e6}, e)) ||
        (rc = hub_json_int(&length, at, "floor_scale", (struct hub_json_range){1, 1u << 30}, e)))
        return rc;
    f->query_growth = is_on ? growth : 0;
    f->query_length = (double)length;
    f->query_first = 1;
    return Q_OK;
}

/* Does the config say how many elements are rotated, and not which part of them? */
static bool is_rotated_counted(const struct family *row, const struct hub_json_at *at)
{
    return row->rotated_key && (!row->fraction_key || hub_json_find(at, row->rotated_key));
}

/* GPT-J: as a number of elements. */
static enum q_code load_rotated(struct model_config *c, const struct family *row,
                                const struct hub_json_at *at, struct q_err *e)
{
    const bool all = json_is_null(json_object_get(at->object, row->rotated_key));
    int64_t n = all ? c->head_dim : row->rotated;
    const enum q_code rc =
        hub_json_int(&n, at, row->rotated_key, (struct hub_json_range){2, CONFIG_HEAD_MAX}, e);
    if (rc)
        return rc;
    if (n % 2 || n > c->head_dim)
        return q_fail(e, Q_CORRUPT, "%s: %s is %lld, expected an even number up to head_dim %u",
                      at->path, row->rotated_key, (long long)n, c->head_dim);
    /* half an element more, so that rounding down gives n again */
    c->forward.rotary_fraction = n == c->head_dim ? 1 : ((double)n + 0.5) / c->head_dim;
    return Q_OK;
}

/* The number of rotated elements of a head. Newer configs have it among the rope parameters. */
static enum q_code load_fraction(struct model_config *c, const struct family *row,
                                 const struct hub_json_at *at, struct q_err *e)
{
    static const char newer[] = "partial_rotary_factor";
    const struct hub_json_at rope = {hub_json_find(at, "rope_parameters"), at->path};
    const struct hub_json_at full = {hub_json_find(&rope, "full_attention"), at->path};
    const struct hub_json_at local = {hub_json_find(&rope, "sliding_attention"), at->path};
    const struct hub_json_range range = {0, 1};
    double fraction = row->fraction_key ? row->fraction : 1;
    enum q_code rc;
    if ((rc = hub_json_number(&fraction, at, newer, range, e)) ||
        (row->fraction_key && (rc = hub_json_number(&fraction, at, row->fraction_key, range, e))) ||
        (json_is_object(rope.object) && (rc = hub_json_number(&fraction, &rope, newer, range, e))))
        return rc;
    if (row->fraction_key && json_is_object(full.object) && json_is_object(local.object)) {
        double of_local = fraction;
        if ((rc = hub_json_number(&fraction, &full, newer, range, e)) ||
            (rc = hub_json_number(&of_local, &local, newer, range, e)))
            return rc;
        if (of_local != fraction)
            return q_fail(
                e, Q_UNSUPPORTED,
                "%s: partial_rotary_factor %g of sliding_attention is not supported, only "
                "%g, that of full_attention",
                at->path, of_local, fraction);
    }
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
    const struct hub_json_range eps = {0, 1};
    const char *act = row->act;
    enum q_code rc;
    c->rms_norm_eps = row->eps;
    c->tie_word_embeddings = row->tied;
    c->attention_bias = row->attention_bias;
    c->forward.parallel_residual = row->parallel;
    c->forward.qk_norm = row->qk_norm;
    c->forward.attention_multiplier = row->attention_multiplier;
    c->forward.rms_norm = row->rms_key && hub_json_find(at, row->rms_key);
    if ((row->act_key && (rc = hub_json_str(&act, at, row->act_key, e))) ||
        (row->eps_key && (rc = hub_json_number(&c->rms_norm_eps, at, row->eps_key, eps, e))) ||
        (row->newer_eps_key &&
         (rc = hub_json_number(&c->rms_norm_eps, at, row->newer_eps_key, eps, e))) ||
        (row->rms_key && (rc = hub_json_number(&c->rms_norm_eps, at, row->rms_key, eps, e))) ||
        (rc = load_flags(c, row, at, e)) || (rc = load_ends(c, row, at, e)) ||
        (rc = check_refused(c, row, at, e)) || (rc = check_only(c, row, at, e)) ||
        (rc = load_caps(&c->forward, row, at, e)) ||
        (rc = load_multipliers(&c->forward, row, at, e)) || (rc = load_mup(c, row, at, e)) ||
        (rc = load_few_multipliers(c, row, at, e)) || (rc = load_limits(&c->forward, row, at, e)) ||
        (row->scales_q && (rc = load_growth(&c->forward, at, e))) ||
        (rc = is_rotated_counted(row, at) ? load_rotated(c, row, at, e)
                                          : load_fraction(c, row, at, e)))
        return rc;
    if (strlen(act) >= CONFIG_NAME_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu characters, at most %u are accepted", at->path,
                      row->act_key, strlen(act), CONFIG_NAME_MAX - 1);
    memcpy(c->hidden_act, act, strlen(act) + 1);
    load_baichuan(c, at);
    return Q_OK;
}
