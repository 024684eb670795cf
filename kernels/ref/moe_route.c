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

static float sigmoid_of(const float *x, uint32_t j)
{
    return 1.0f / (1.0f + expf(-score(x, j)));
}

/* c of ops_moe.h. */
static float choice(const struct moe_route_args *a, const float *x, uint32_t j)
{
    if (!a->sigmoid)
        return score(x, j);
    const float p = sigmoid_of(x, j);
    return a->bias ? p + a->bias[j] : p;
}

static float group_value(const struct moe_route_args *a, const float *x, uint32_t group)
{
    const uint32_t n = a->n_expert / a->n_group;
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t j = group * n; j < (group + 1) * n; j++) {
        const float c = choice(a, x, j);
        second = c > first ? first : c > second ? c : second;
        first = c > first ? c : first;
    }
    return a->sigmoid && n > 1 ? first + second : first;
}

/* The groups whose experts may be chosen, a bit each. */
static uint64_t choose_groups(const struct moe_route_args *a, const float *x)
{
    float values[KERN_GROUPS_MAX];
    uint64_t chosen = 0;
    if (a->n_group < 2)
        return ~UINT64_C(0);
    for (uint32_t g = 0; g < a->n_group; g++)
        values[g] = group_value(a, x, g);
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
static void insert(const struct moe_route_args *a, uint32_t *best, uint32_t n, const float *x,
                   uint32_t j)
{
    uint32_t at = n;
    for (; at > 0 && choice(a, x, j) > choice(a, x, best[at - 1]); at--)
        if (at < a->n_used)
            best[at] = best[at - 1];
    if (at < a->n_used)
        best[at] = j;
}

static void by_number(uint32_t *best, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t j = best[i];
        uint32_t at = i;
        for (; at > 0 && best[at - 1] > j; at--)
            best[at] = best[at - 1];
        best[at] = j;
    }
}

/* The weight of each score before anything is divided. */
static float weight(float score, float max)
{
    return max == -INFINITY ? 0 : expf(score - max);
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

static void route_row(const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    uint32_t *best = a->experts + row * a->n_used;
    float *weights = a->weights + row * a->n_used, taken = 0;
    const uint64_t groups = choose_groups(a, x);
    const uint32_t of_group = a->n_group > 1 ? a->n_expert / a->n_group : a->n_expert;
    uint32_t n = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        if (groups >> (j / of_group) & 1) {
            insert(a, best, n, x, j);
            n += n < a->n_used;
        }
    const float max = row_max(a, x);
    const float sum = a->sigmoid ? 0 : row_sum(a, x, max);
    by_number(best, a->n_used);
    for (uint32_t i = 0; i < a->n_used; i++) {
        if (a->sigmoid)
            weights[i] = sigmoid_of(x, best[i]);
        else
            weights[i] = sum > 0 ? weight(score(x, best[i]), max) / sum : 0;
        taken += weights[i];
    }
    for (uint32_t i = 0; a->renormalize && taken > 0 && i < a->n_used; i++)
        weights[i] /= taken;
    for (uint32_t i = 0; a->scale != 0 && i < a->n_used; i++)
        weights[i] *= a->scale;
}

void moe_route_ref(const struct moe_route_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        route_row(a, i);
}
