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

/* Put j among the n best, of which n_used are kept: before those that are worse, behind its equals,
 * which came before it. */
static void insert(const struct moe_route_args *a, uint32_t *best, uint32_t n, const float *x,
                   uint32_t j)
{
    uint32_t at = n;
    for (; at > 0 && score(x, j) > score(x, best[at - 1]); at--)
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

static void route_row(const struct moe_route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    uint32_t *best = a->experts + row * a->n_used;
    float *weights = a->weights + row * a->n_used, sum = 0, taken = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        insert(a, best, j < a->n_used ? j : a->n_used, x, j);
    const float max = score(x, best[0]);
    by_number(best, a->n_used);
    for (uint32_t j = 0; j < a->n_expert; j++)
        sum += weight(score(x, j), max);
    for (uint32_t i = 0; i < a->n_used; i++) {
        weights[i] = sum > 0 ? weight(score(x, best[i]), max) / sum : 0;
        taken += weights[i];
    }
    for (uint32_t i = 0; a->renormalize && taken > 0 && i < a->n_used; i++)
        weights[i] /= taken;
}

void moe_route_ref(const struct moe_route_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        route_row(a, i);
}
