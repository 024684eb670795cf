/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of AltUp (altup_…), LAuReL (laurel_rank) and sparse gates, with transformers' defaults. */
#include "common/hub/config_streams.h"
#include <math.h>
#include <string.h>
#include "common/hub/config_internal.h"

#define RANK_MAX       (1u << 16)
#define SPARSE_DEFAULT 0.95f /* of the first layers, where there are more of them */
#define N_SPARSE       10u

bool model_config_is_sparse(const struct model_config *c)
{
    for (uint32_t i = 0; i < c->n_layer; i++)
        if (c->streams.sparsity[i] > 0)
            return true;
    return false;
}

/* By bisection: 64 steps leave no more than the rounding of erfc. */
double config_normal_quantile(double p)
{
    double low = -40, high = 40;
    for (int i = 0; i < 64; i++) {
        const double z = (low + high) / 2;
        if (erfc(-z / sqrt(2)) / 2 < p)
            low = z;
        else
            high = z;
    }
    return (low + high) / 2;
}

static enum q_code load_sparsity(struct model_config *c, const struct hub_json_at *at,
                                 struct q_err *e)
{
    static const char key[] = "activation_sparsity_pattern";
    const json_t *list = hub_json_find(at, key);
    if (list && json_array_size(list) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: %s is %s of %zu entries, expected a list with one number for each of "
                      "the %u layers",
                      at->path, key, hub_json_kind(list), json_array_size(list), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const json_t *v = json_array_get(list, i);
        const double p = json_number_value(v);
        if (list && (!json_is_number(v) || !(p >= 0 && p < 1)))
            return q_fail(e, Q_CORRUPT,
                          "%s: %s[%u] is not a number from 0 to less than 1, the part of the "
                          "gate's columns that are 0",
                          at->path, key, i);
        const bool by_default = !list && c->n_layer > N_SPARSE && i < N_SPARSE;
        c->streams.sparsity[i] = by_default ? SPARSE_DEFAULT : (float)p;
    }
    return Q_OK;
}

/* That they are the same is checked where they are read (config.c). */
static enum q_code check_widths(const struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const json_t *list = hub_json_find(at, "intermediate_size");
    if (!json_is_array(list) || json_array_size(list) == c->n_layer)
        return Q_OK;
    return q_fail(e, Q_CORRUPT,
                  "%s: intermediate_size has %zu entries, expected num_hidden_layers = %u",
                  at->path, json_array_size(list), c->n_layer);
}

enum q_code config_streams_load(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    int64_t n = 4, active = 0, rank = 64;
    enum q_code rc;
    if (strcmp(c->model_type, "gemma3n_text") != 0)
        return Q_OK;
    c->streams.scaled = true;
    if ((rc = hub_json_int(&n, at, "altup_num_inputs",
                           (struct hub_json_range){2, CONFIG_STREAMS_MAX}, e)) ||
        (rc = hub_json_int(&active, at, "altup_active_idx", (struct hub_json_range){0, 1 << 16},
                           e)) ||
        (rc = hub_json_bool(&c->streams.scaled, at, "altup_correct_scale", e)) ||
        (rc = hub_json_int(&rank, at, "laurel_rank", (struct hub_json_range){1, RANK_MAX}, e)) ||
        (rc = check_widths(c, at, e)))
        return rc;
    if (active)
        return q_fail(e, Q_UNSUPPORTED, "%s: altup_active_idx %lld is not supported, expected 0",
                      at->path, (long long)active);
    c->streams.n = (uint32_t)n;
    c->streams.rank = (uint32_t)rank;
    return load_sparsity(c, at, e);
}
