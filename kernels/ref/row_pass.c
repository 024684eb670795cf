/* SPDX-License-Identifier: Apache-2.0 */
/* Sums: ops_row.h. e^x, x <= 0, each step rounded: n = x / ln 2 to the nearest integer, r = x - n
 * ln 2 in two parts, e^x = (1 + r + r^2 p(r)) 2^n with the minimax polynomial of the Cephes
 * library's expf; x below ROW_EXP_MIN gives 0. No multiply-adds: a row's tokens are the same on all
 * machines. */
#include <math.h>
#include "kernels/ops/ops_row.h"
#include "kernels/variants.h"

#define ROUND 12582912.0f /* 1.5 * 2^23: the sum's fraction is rounded away */

static float row_exp(float x)
{
    float y = x < ROW_EXP_MIN ? ROW_EXP_MIN : x;
    float n = (y * 1.44269504f + ROUND) - ROUND;
    float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float e = ldexpf(p * r * r + r + 1.0f, (int)n);
    return x < ROW_EXP_MIN ? 0.0f : e;
}

static double chunk_sum(const struct row_pass_args *a, const float *x, uint32_t n)
{
    double lane[16] = {0}, sum = 0;
    const uint32_t whole = n / 16 * 16;
    for (uint32_t i = 0; i < n; i++) {
        double v = a->kind != ROW_BETWEEN || x[i] > a->high ? (double)x[i] : 0;
        if (i < whole)
            lane[i % 16] += v;
        else
            sum += v;
    }
    for (uint32_t l = 0; l < 16; l++)
        sum += lane[l];
    return sum;
}

/* Apply the pass to element i. */
static void visit(const struct row_pass_args *a, uint32_t i)
{
    float v = a->x[i];
    switch (a->kind) {
    case ROW_MAX:
        *a->most = v > *a->most ? v : *a->most;
        *a->n_found |= v != v;
        break;
    case ROW_WEIGHTS:
        v = row_exp((v - a->high) / a->temperature);
        a->x[i] = v < a->low ? 0 : v;
        break;
    case ROW_KEEP:
        a->x[i] = v < a->low ? 0 : v;
        break;
    case ROW_BETWEEN:
        if (v > a->low && v <= a->high && *a->n_found < a->n_item)
            a->items[(*a->n_found)++] = (struct row_item){v, i};
        break;
    case ROW_RANK:
        *a->n_found += v > a->high || (v == a->high && i < a->id);
        break;
    }
}

void row_pass_ref(const struct row_pass_args *a, const struct kern_exec *x)
{
    (void)x;
    if (a->kind == ROW_MAX)
        *a->most = -INFINITY;
    if (a->kind == ROW_MAX || a->kind == ROW_BETWEEN || a->kind == ROW_RANK)
        *a->n_found = 0;
    for (uint32_t i = 0; i < a->n_col; i++)
        visit(a, i);
    for (uint32_t c = 0; a->sums && c < a->n_col; c += ROW_CHUNK)
        a->sums[c / ROW_CHUNK] =
            chunk_sum(a, a->x + c, a->n_col - c < ROW_CHUNK ? a->n_col - c : ROW_CHUNK);
}
