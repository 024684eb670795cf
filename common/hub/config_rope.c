/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/config_internal.h"
#include <string.h>

#define THETA_DEFAULT 10000.0

/* Which keys a kind cannot do without. */
enum { NEED_FACTOR = 1, NEED_BANDS = 2, NEED_ORIGINAL = 4 };

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
                  "llama3 or yarn",
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
        {"original_max_position_embeddings", &r->original_max_position, {1, 1u << 28}},
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
    if (r->kind == ROPE_LLAMA3 && r->low_freq_factor >= r->high_freq_factor)
        return q_fail(e, Q_CORRUPT, "%s: low_freq_factor %g is not below high_freq_factor %g",
                      at->path, r->low_freq_factor, r->high_freq_factor);
    return Q_OK;
}

enum q_code config_rope_load(struct rope_config *r, const struct hub_json_at *config,
                             struct q_err *e)
{
    *r = (struct rope_config){
        .theta = THETA_DEFAULT, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    enum q_code rc =
        hub_json_number(&r->theta, config, "rope_theta", (struct hub_json_range){1.001, 1e15}, e);
    if (rc)
        return rc;
    const char *key = hub_json_find(config, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const struct hub_json_at at = {hub_json_find(config, key), config->path};
    if (!at.object)
        return Q_OK;
    if (!json_is_object(at.object))
        return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected an object", at.path, key,
                      hub_json_kind(at.object));
    if (hub_json_find(&at, "full_attention") || hub_json_find(&at, "sliding_attention"))
        return q_fail(e, Q_UNSUPPORTED, "%s: %s with values per layer type is not supported yet",
                      at.path, key);
    int needs = 0;
    if ((rc = read_kind(r, &needs, &at, e)) || (rc = read_numbers(r, &at, e)))
        return rc;
    return check_needs(r, needs, &at, e);
}
