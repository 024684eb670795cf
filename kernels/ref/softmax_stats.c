/* SPDX-License-Identifier: Apache-2.0 */
/* max, lowest index of it, and sum_c exp(x[c] - max), NaN counting as -inf.
 *
 * Order: 16 f64 lanes; lane l adds the terms of columns l, l + 16, …; folded by halves. A term is
 * exp in f32 of the f32 difference; it is 1 where x equals the max (also when both are +inf) and 0
 * where x is NaN. A row with nothing above -inf has max -inf, argmax 0, sumexp 0. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static double sum_exp(const float *row, uint32_t n_col, float max)
{
    double lane[16] = {0};
    if (max == -INFINITY)
        return 0;
    for (uint32_t c = 0; c < n_col; c++)
        if (!isnan(row[c]))
            lane[c % 16] += (double)(row[c] == max ? 1.0f : expf(row[c] - max));
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

void softmax_stats_ref(const struct softmax_stats_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + i * a->x_stride;
        a->max[i] = -INFINITY;
        a->argmax[i] = 0;
        for (uint32_t c = 0; c < a->n_col; c++)
            if (row[c] > a->max[i]) {
                a->max[i] = row[c];
                a->argmax[i] = c;
            }
        a->sumexp[i] = sum_exp(row, a->n_col, a->max[i]);
    }
}
