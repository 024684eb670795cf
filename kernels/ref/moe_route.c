/* SPDX-License-Identifier: Apache-2.0 */
/* Definition: ops_moe.h. The output arrays hold the best experts so far, best first; at the end
 * they are sorted by number. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float score(const float *x, uint32_t j)
{
    return isnan(x[j]) ? -INFINITY : x[j];
}

struct row { /* of scores, and what the softmax of all of them takes */
    const struct moe_route_args *a;
    const float *x;
    float max, sum;
};

/* The weight of each score before anything is divided. */
static float weight(float score, float max)
{
    return max == -INFINITY ? 0 : expf(score - max);
}

/* p of ops_moe.h. */
static float share(const struct row *r, uint32_t j)
{
    if (r->a->sigmoid)
        return 1.0f / (1.0f + expf(-score(r->x, j)));
    return r->sum > 0 ? weight(score(r->x, j), r->max) / r->sum : 0;
}

/* c of ops_moe.h. */
static float choice(const struct row *r, uint32_t j)
{
    return r->a->bias ? share(r, j) + r->a->bias[j] : score(r->x, j);
}

static float group_value(const struct row *r, uint32_t group)
{
    const struct moe_route_args *a = r->a;
    const uint32_t n = a->n_expert / a->n_group;
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t j = group * n; j < (group + 1) * n; j++) {
        const float c = choice(r, j);
        second = c > first ? first : c > second ? c : second;
        first = c > first ? c : first;
    }
    return a->sigmoid && n > 1 ? first + second : first;
}

/* The groups whose experts may be chosen, a bit each. */
static uint64_t choose_groups(const struct row *r)
{
    const struct moe_route_args *a = r->a;
    float values[KERN_GROUPS_MAX];
    uint64_t chosen = 0;
    if (a->n_group < 2)
        return ~UINT64_C(0);
    for (uint32_t g = 0; g < a->n_group; g++)
        values[g] = group_value(r, g);
    for (uint32_t i = 0; i < a->n_group_used; i++) {
        uint32_t best = a->n_group;
        for (uint32_t g = 0; g < a->n_group; g++)
            if (!(chosen >> g & 1) && (best == a->n_group || values[g] > values[best]))
                best = g;
        chosen |= UINT64_C(1) << best;
    }
    return chosen;
}

/* Put j among the n best, of which n_used are kept: before those that are worse, behind its equals,
 * which came before it. */
static void insert(const struct row *r, uint32_t *best, uint32_t n, uint32_t j)
{
    const uint32_t n_used = r->a->n_used;
    uint32_t at = n;
    for (; at > 0 && choice(r, j) > choice(r, best[at - 1]); at--)
        if (at < n_used)
            best[at] = best[at - 1];
    if (at < n_used)
        best[at] = j;
}

static float row_max(const struct moe_route_args *a, const float *x)
{
    float max = -INFINITY;
    for (uint32_t j = 0; j < a->n_expert; j++)
        max = score(x, j) > max ? score(x, j) : max;
    return max;
}

static float row_sum(const struct moe_route_args *a, const float *x, float max)
{
    float sum = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        sum += weight(score(x, j), max);
    return sum;
}

/* Is expert j among the first n that were chosen? */
static bool is_before(const uint32_t *best, uint32_t n, uint32_t j)
{
    for (uint32_t i = 0; i < n; i++)
        if (best[i] == j)
            return true;
    return false;
}

/* The share of number i among the experts that are near it and were not chosen before it. */
static float mixer_share(const struct row *r, const uint32_t *best, uint32_t i)
{
    const float m = score(r->x, best[i]);
    float sum = 0;
    for (uint32_t j = 0; j < r->a->n_expert; j++) {
        const float s = score(r->x, j), most = fabsf(s) > m ? fabsf(s) : m;
        if (!is_before(best, i, j) && !((m - s) / most > r->a->mixer))
            sum += weight(s, m);
    }
    return sum > 0 ? 1 / sum : 0;
}

/* Numbers of experts ascending, each with its share. */
static void sort_shares(uint32_t *best, float *shares, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t j = best[i];
        const float its = shares[i];
        uint32_t at = i;
        for (; at > 0 && best[at - 1] > j; at--) {
            best[at] = best[at - 1];
            shares[at] = shares[at - 1];
        }
        best[at] = j;
        shares[at] = its;
    }
}

/* Shares of the chosen, by number. */
static void make_shares(const struct row *r, uint32_t *best, float *shares)
{
    const uint32_t n = r->a->n_used;
    if (r->a->mixer > 0)
        for (uint32_t i = 0; i < n; i++)
            shares[i] = mixer_share(r, best, i);
    else
        for (uint32_t i = 0; i < n; i++)
            shares[i] = share(r, best[i]);
    sort_shares(best, shares, n);
}

static void route_row(const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    struct row r = {.a = a, .x = x, .max = row_max(a, x)};
    uint32_t *best = a->experts + row * a->n_used;
    float *weights = a->weights + row * a->n_used, taken = 0;
    r.sum = a->sigmoid ? 0 : row_sum(a, x, r.max);
    const uint64_t groups = choose_groups(&r);
    const uint32_t of_group = a->n_group > 1 ? a->n_expert / a->n_group : a->n_expert;
    uint32_t n = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        if (groups >> (j / of_group) & 1) {
            insert(&r, best, n, j);
            n += n < a->n_used;
        }
    make_shares(&r, best, weights);
    for (uint32_t i = 0; i < a->n_used; i++)
        taken += weights[i];
    for (uint32_t i = 0; a->renormalize && taken > 0 && i < a->n_used; i++)
        weights[i] /= taken;
    for (uint32_t i = 0; a->scale != 0 && i < a->n_used; i++)
        weights[i] *= a->scale;
    for (uint32_t i = 0; a->scales && i < a->n_used; i++)
        weights[i] *= a->scales[best[i]];
}

void moe_route_ref(const struct moe_route_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        route_row(a, i);
}
