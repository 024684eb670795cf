/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <math.h>
#include <string.h>

#define THETA_DEFAULT 10000.0
#define ORIGINAL      "original_max_position_embeddings"

/* Keys that each kind requires. */
enum { NEED_FACTOR = 1, NEED_BANDS = 2, NEED_ORIGINAL = 4, NEED_FACTORS = 8 };

static const struct {
    const char *name;
    enum rope_kind kind;
    int needs;
} kinds[] = {
    {"default", ROPE_DEFAULT, 0},
    {"linear", ROPE_LINEAR, NEED_FACTOR},
    {"dynamic", ROPE_DYNAMIC, NEED_FACTOR},
    {"llama3", ROPE_LLAMA3, NEED_FACTOR | NEED_BANDS | NEED_ORIGINAL},
    {"yarn", ROPE_YARN, 0},
    {"longrope", ROPE_LONG, NEED_FACTORS},
    {"proportional", ROPE_PROPORTIONAL, 0},
    {"mrope", ROPE_DEFAULT, 0}, /* with a position in each direction; of text all are the same */
    {"su", ROPE_LONG, NEED_FACTORS}, /* its name in the first Phi-3 checkpoints */
};

static enum q_code read_kind(struct rope_config *r, int *needs, const struct hub_json_at *at,
                             struct q_err *e)
{
    const char *name = "default";
    enum q_code rc;
    if ((rc = hub_json_str(&name, at, "type", e)) || (rc = hub_json_str(&name, at, "rope_type", e)))
        return rc;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) {
            r->kind = kinds[i].kind;
            *needs = kinds[i].needs;
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: rope type \"%.40s\" is not supported, expected default, linear, dynamic, "
                  "llama3, yarn, longrope or proportional",
                  at->path, name);
}

static enum q_code read_numbers(struct rope_config *r, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct {
        const char *key;
        double *out;
        struct hub_json_range range;
    } numbers[] = {
        {"rope_theta", &r->theta, {1.001, 1e15}},
        {"factor", &r->factor, {1, 1e6}},
        {ORIGINAL, &r->original_max_position, {1, 1u << 28}},
        {"low_freq_factor", &r->low_freq_factor, {1e-6, 1e6}},
        {"high_freq_factor", &r->high_freq_factor, {1e-6, 1e6}},
        {"beta_fast", &r->beta_fast, {1e-6, 1e6}},
        {"beta_slow", &r->beta_slow, {1e-6, 1e6}},
        {"attention_factor", &r->attention_factor, {1e-6, 1e6}},
        {"mscale", &r->mscale, {0, 1e6}},
        {"mscale_all_dim", &r->mscale_all_dim, {0, 1e6}},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        enum q_code rc = hub_json_number(numbers[i].out, at, numbers[i].key, numbers[i].range, e);
        if (rc)
            return rc;
    }
    return hub_json_bool(&r->truncate, at, "truncate", e);
}

static enum q_code read_factors(float *out, const struct hub_json_at *at, const char *key,
                                uint32_t n, struct q_err *e)
{
    const json_t *list = hub_json_find(at, key);
    if (!json_is_array(list) || json_array_size(list) != n)
        return q_fail(e, Q_CORRUPT,
                      "%s: %s has %zu entries, expected a list of %u numbers (half the elements "
                      "of a head that are rotated)",
                      at->path, key, json_array_size(list), n);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const double factor = json_number_value(v);
        if (!json_is_number(v) || !(factor >= 1e-3 && factor <= 1e6))
            return q_fail(e, Q_CORRUPT, "%s: %s[%u] is %s, expected a number from 0.001 to 1000000",
                          at->path, key, i, json_is_number(v) ? "out of range" : hub_json_kind(v));
        out[i] = (float)factor;
    }
    return Q_OK;
}

/* Phi-3.5-MoE's names of attention_factor, one for short sequences and one for long ones. */
static enum q_code read_mscales(struct rope_config *r, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct hub_json_range range = {1e-6, 1e6};
    double of_short = 0, of_long = 0;
    enum q_code rc = hub_json_number(&of_short, at, "short_mscale", range, e);
    if (rc || (rc = hub_json_number(&of_long, at, "long_mscale", range, e)))
        return rc;
    if (of_short != of_long)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: short_mscale %g and long_mscale %g differ, which is not supported",
                      at->path, of_short, of_long);
    r->attention_factor = of_short != 0 ? of_short : r->attention_factor;
    return Q_OK;
}

/* longrope requires a factor for each pair of elements, for short and for long sequences. */
static enum q_code read_long(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const uint32_t n = model_config_n_rot(c) / 2;
    enum q_code rc;
    if (n > CONFIG_ROPE_FACTORS_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: longrope of %u elements of a head is not supported, at most %u",
                      at->path, 2 * n, 2 * CONFIG_ROPE_FACTORS_MAX);
    if ((rc = read_mscales(&c->rope, at, e)) ||
        (rc = read_factors(c->rope.short_factor, at, "short_factor", n, e)))
        return rc;
    return read_factors(c->rope.long_factor, at, "long_factor", n, e);
}

static enum q_code check_needs(const struct rope_config *r, int needs, const struct hub_json_at *at,
                               struct q_err *e)
{
    const char *missing = NULL;
    if ((needs & NEED_FACTOR) && r->factor == 0)
        missing = "factor";
    if ((needs & NEED_BANDS) && (r->low_freq_factor == 0 || r->high_freq_factor == 0))
        missing = "low_freq_factor and high_freq_factor";
    if ((needs & NEED_ORIGINAL) && r->original_max_position == 0)
        missing = "original_max_position_embeddings";
    if (r->kind == ROPE_YARN && r->factor == 0 && r->original_max_position == 0)
        missing = "factor or original_max_position_embeddings";
    if (missing)
        return q_fail(e, Q_CORRUPT, "%s: the rope parameters do not contain %s", at->path, missing);
    if (r->kind == ROPE_LLAMA3 && r->low_freq_factor > r->high_freq_factor)
        return q_fail(e, Q_CORRUPT, "%s: low_freq_factor %g is above high_freq_factor %g", at->path,
                      r->low_freq_factor, r->high_freq_factor);
    return Q_OK;
}

/* Model types with another rope in layers with a window; their maximum of positions counts the
 * factor already. */
static const struct {
    const char *model_type, *key, *local_key; /* older spellings of both */
    double theta, local_theta;                /* when absent */
} local_ropes[] = {
    {"gemma3_text", "rope_theta", "rope_local_base_freq", 1e6, 1e4},
    {"gemma3n_text", "rope_theta", "rope_local_base_freq", 1e6, 1e4},
    {"gemma4_text", "rope_theta", "rope_local_base_freq", 1e6, 1e4},
    {"gemma4_unified_text", "rope_theta", "rope_local_base_freq", 1e6, 1e4},
    {"mellum", "rope_theta", "rope_theta", 5e5, 1e4},
    {"mimo_v2_flash", "rope_theta", "swa_rope_theta", 5e6, 1e4},
    {"modernbert", "global_rope_theta", "local_rope_theta", 16e4, 1e4},
    {"olmo3", "rope_theta", "rope_theta", 5e5, 5e5},
};

/* rope_theta when absent, of other model types */
static const struct {
    const char *model_type;
    double theta;
} thetas[] = {
    {"apertus", 12e6},   {"cwm", 1e6},         {"ernie4_5", 5e5}, {"ernie4_5_moe", 5e5},
    {"flex_olmo", 5e5},  {"gpt_oss", 15e4},    {"helium", 1e5},   {"lfm2", 1e6},
    {"hy_v3", 11158840}, {"llama4_text", 5e5}, {"minimax", 1e6},  {"minimax_m2", 5e6},
    {"ministral3", 1e6}, {"phimoe", 1e6},      {"smollm3", 2e6},  {"solar_open", 1e6},
};

/* Hunyuan's "dynamic": an alpha that stretches theta alike for sequences of all lengths. */
static enum q_code read_alpha(struct rope_config *r, const struct model_config *c, int *needs,
                              const struct hub_json_at *at, struct q_err *e)
{
    const double d = model_config_n_rot(c);
    double alpha = 0;
    const enum q_code rc =
        hub_json_number(&alpha, at, "alpha", (struct hub_json_range){1e-3, 1e9}, e);
    if (rc || r->kind != ROPE_DYNAMIC || alpha == 0)
        return rc;
    r->theta *= pow(alpha, d > 2 ? d / (d - 2) : 1);
    r->kind = ROPE_DEFAULT;
    *needs = 0;
    return Q_OK;
}

/* Ministral 3: q grows with the position from the original length on. */
static enum q_code read_growth(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    struct forward_config *f = &c->forward;
    enum q_code rc;
    if (!hub_json_find(at, "llama_4_scaling_beta"))
        return Q_OK;
    if ((rc = hub_json_number(&f->query_growth, at, "llama_4_scaling_beta",
                              (struct hub_json_range){0, 1e6}, e)))
        return rc;
    f->query_length = f->query_growth != 0 ? c->rope.original_max_position : 0;
    if (f->query_growth != 0 && f->query_length == 0)
        return q_fail(e, Q_CORRUPT,
                      "%s: the rope parameters have llama_4_scaling_beta, but not " ORIGINAL,
                      at->path);
    return Q_OK;
}

static enum q_code read_rope(struct rope_config *r, struct model_config *c,
                             const struct hub_json_at *config, const struct hub_json_at *at,
                             struct q_err *e)
{
    const struct hub_json_range lengths = {1, 1u << 28};
    enum q_code rc;
    int needs = 0;
    if ((rc = read_kind(r, &needs, at, e)))
        return rc;
    if ((needs & NEED_FACTORS) &&
        ((rc = hub_json_number(&r->original_max_position, config, ORIGINAL, lengths, e)) ||
         (rc = read_long(c, at, e))))
        return rc;
    if (r->kind == ROPE_PROPORTIONAL &&
        (rc = hub_json_number(&r->proportion, at, "partial_rotary_factor",
                              (struct hub_json_range){0, 1}, e)))
        return rc;
    if ((rc = read_numbers(r, at, e)) || (rc = read_alpha(r, c, &needs, at, e)))
        return rc;
    return check_needs(r, needs, at, e);
}

/* Of layers with a window, and of the others. */
static enum q_code read_two(struct model_config *c, const struct hub_json_at *config,
                            const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_at full = {hub_json_find(at, "full_attention"), at->path};
    const struct hub_json_at local = {hub_json_find(at, "sliding_attention"), at->path};
    enum q_code rc = Q_OK;
    if ((full.object && !json_is_object(full.object)) ||
        (local.object && !json_is_object(local.object)))
        return q_fail(e, Q_CORRUPT, "%s: rope parameters of a layer type are no object", at->path);
    if (full.object)
        rc = read_rope(&c->rope, c, config, &full, e);
    if (!rc && local.object)
        rc = read_rope(&c->local_rope, c, config, &local, e);
    if (!rc && (c->local_rope.kind == ROPE_LONG || c->local_rope.kind == ROPE_DYNAMIC))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: sliding_attention: rope that depends on the prompt's length (dynamic, "
                    "longrope) is not supported",
                    at->path);
    return rc;
}

/* Rope parameters of model types whose absent ones are no plain rope; transformers then reads no
 * rope_theta beside them either. */
static const struct {
    const char *model_type, *text;
} absent[] = {
    {"apertus",
     "{\"rope_type\": \"llama3\", \"rope_theta\": 12e6, \"factor\": 8, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4, \"" ORIGINAL "\": 8192}"},
    {"cwm",
     "{\"rope_type\": \"llama3\", \"rope_theta\": 1e6, \"factor\": 16, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4, \"" ORIGINAL "\": 8192}"},
    {"gemma4_text", "{\"rope_type\": \"proportional\", \"rope_theta\": 1e6, "
                    "\"partial_rotary_factor\": 0.25}"},
    {"gemma4_unified_text", "{\"rope_type\": \"proportional\", \"rope_theta\": 1e6, "
                            "\"partial_rotary_factor\": 0.25}"},
    {"mistral4", "{\"rope_type\": \"yarn\", \"rope_theta\": 1e4, \"factor\": 128, \"mscale\": 1, "
                 "\"mscale_all_dim\": 1, "
                 "\"llama_4_scaling_beta\": 0.1, \"" ORIGINAL "\": 8192}"},
    {"ministral3", "{\"rope_type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 16, \"mscale\": 1, "
                   "\"mscale_all_dim\": 1, "
                   "\"llama_4_scaling_beta\": 0.1, \"" ORIGINAL "\": 16384}"},
};

static enum q_code read_absent(struct model_config *c, const struct hub_json_at *config,
                               struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof absent / sizeof *absent && !rc; i++) {
        json_t *object = NULL;
        if (strcmp(absent[i].model_type, c->model_type) != 0)
            continue;
        if ((rc = hub_json_parse(&object, absent[i].text, strlen(absent[i].text), config->path, e)))
            return rc;
        const struct hub_json_at at = {object, config->path};
        if (!(rc = read_rope(&c->rope, c, config, &at, e)))
            rc = read_growth(c, &at, e);
        json_decref(object);
    }
    return rc;
}

/* Defaults, and the older keys of two ropes; *two: the model type has two. */
static enum q_code init_ropes(bool *two, struct model_config *c, const struct hub_json_at *config,
                              struct q_err *e)
{
    const struct hub_json_range range = {1.001, 1e15};
    enum q_code rc = Q_OK;
    *two = false;
    c->rope = (struct rope_config){
        .theta = THETA_DEFAULT,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
        .proportion = 1,
    };
    for (size_t i = 0; i < sizeof thetas / sizeof *thetas; i++)
        if (strcmp(thetas[i].model_type, c->model_type) == 0)
            c->rope.theta = thetas[i].theta;
    c->rope.backward = strcmp(c->model_type, "nanochat") == 0;
    c->local_rope = c->rope;
    for (size_t i = 0; i < sizeof local_ropes / sizeof *local_ropes && !rc; i++) {
        if (strcmp(local_ropes[i].model_type, c->model_type) != 0)
            continue;
        c->rope.theta = local_ropes[i].theta;
        c->rope.in_max_position = true;
        c->local_rope.theta = local_ropes[i].local_theta;
        *two = true;
        if (!(rc = hub_json_number(&c->rope.theta, config, local_ropes[i].key, range, e)))
            rc = hub_json_number(&c->local_rope.theta, config, local_ropes[i].local_key, range, e);
    }
    return rc;
}

/* Granite with windows: a theta of each layer; 0: no rope. Layers with a window have one, and so
 * have the others. */
static enum q_code load_thetas(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    static const char key[] = "layer_rope_theta";
    const bool has_it =
        strcmp(c->model_type, "granite_swa") == 0 || strcmp(c->model_type, "granitemoe_swa") == 0;
    const json_t *list = hub_json_find(at, key);
    double found[2] = {0, 0}; /* of layers without a window, and with one */
    if (!has_it)
        return Q_OK;
    c->local_rope = c->rope;
    if (c->rope.kind == ROPE_LONG || c->rope.kind == ROPE_DYNAMIC)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: rope that depends on the prompt's length (dynamic, longrope) is not "
                      "supported for model_type \"%s\"",
                      at->path, c->model_type);
    if (!list)
        return Q_OK;
    if (json_array_size(list) != c->n_layer)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu entries, expected num_hidden_layers = %u",
                      at->path, key, json_array_size(list), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const json_t *v = json_array_get(list, i);
        const double theta = json_number_value(v);
        double *of_kind = &found[c->window[i] != 0];
        c->no_rope[i] = theta == 0;
        if (!json_is_number(v) || (theta != 0 && !(theta > 1 && theta <= 1e15)))
            return q_fail(e, Q_CORRUPT, "%s: %s[%u] is %s, expected 0 or a number above 1",
                          at->path, key, i, json_is_number(v) ? "out of range" : hub_json_kind(v));
        if (theta != 0 && *of_kind != 0 && theta != *of_kind)
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: %s[%u] is %g, which is not supported beside %g: expected one value "
                          "in layers with sliding_attention, and one in the others",
                          at->path, key, i, theta, *of_kind);
        *of_kind = theta != 0 ? theta : *of_kind;
    }
    c->rope.theta = found[0] != 0 ? found[0] : c->rope.theta;
    c->local_rope.theta = found[1] != 0 ? found[1] : c->local_rope.theta;
    return Q_OK;
}

/* Olmo Hybrid: no layer is rotated where theta is null, which is not the same as absent. */
static void load_null_theta(struct model_config *c, const struct hub_json_at *config)
{
    static const char key[] = "rope_theta";
    const json_t *rope = hub_json_find(config, "rope_parameters");
    const json_t *at = json_object_get(rope, key) ? rope : config->object;
    if (strcmp(c->model_type, "olmo_hybrid") == 0 && json_is_null(json_object_get(at, key)))
        memset(c->no_rope, true, c->n_layer);
}

static enum q_code load_rope(struct model_config *c, const struct hub_json_at *config,
                             struct q_err *e)
{
    const struct hub_json_range range = {1.001, 1e15};
    struct rope_config *r = &c->rope;
    bool two;
    enum q_code rc;
    if ((rc = init_ropes(&two, c, config, e)) ||
        (rc = hub_json_number(&r->theta, config, "rotary_emb_base", range, e)) ||
        (rc = hub_json_number(&r->theta, config, "rope_theta", range, e)))
        return rc;
    const char *key = hub_json_find(config, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const struct hub_json_at at = {hub_json_find(config, key), config->path};
    if (!at.object)
        return read_absent(c, config, e);
    if (!json_is_object(at.object))
        return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected an object", at.path, key,
                      hub_json_kind(at.object));
    if (!hub_json_find(&at, "full_attention") && !hub_json_find(&at, "sliding_attention"))
        return (rc = read_rope(r, c, config, &at, e)) ? rc : read_growth(c, &at, e);
    if (two)
        return read_two(c, config, &at, e);
    return q_fail(e, Q_UNSUPPORTED, "%s: %s with values per layer type is not supported", at.path,
                  key);
}

enum q_code config_rope_load(struct model_config *c, const struct hub_json_at *config,
                             struct q_err *e)
{
    const enum q_code rc = load_rope(c, config, e);
    load_null_theta(c, config);
    return rc ? rc : load_thetas(c, config, e);
}
