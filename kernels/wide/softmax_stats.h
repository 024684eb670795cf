/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_stats on 16 lanes; definition and order: ref/softmax_stats.c; exp: wide/exp.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_SOFTMAX_STATS_H
#define QUIRE_KERNELS_WIDE_SOFTMAX_STATS_H
#include <math.h>
#include "kernels/wide/exp.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* Columns c … c + 15, -inf past the end of the row. */
INLINE struct vec wide_logits(const float *row, uint32_t c, uint32_t n_col)
{
    if (n_col - c >= 16)
        return vec_load(row + c);
    return vec_first(n_col - c, vec_load_n(row + c, n_col - c), vec_set(-INFINITY));
}

INLINE float wide_row_max(const float *row, uint32_t n_col)
{
    struct vec max = vec_set(-INFINITY);
    for (uint32_t c = 0; c < n_col; c += 16)
        max = vec_max(wide_logits(row, c, n_col), max); /* a NaN does not change max */
    return vec_fold_max(max);
}

INLINE uint32_t wide_first_equal(const float *row, uint32_t n_col, float value)
{
    for (uint32_t c = 0; c < n_col; c += 16) {
        uint32_t bits = vec_equal_bits(wide_logits(row, c, n_col), vec_set(value));
        if (bits)
            return c + (uint32_t)__builtin_ctz(bits);
    }
    return 0;
}

/* Lanes past the end are -inf: they add e^-inf = 0. */
INLINE double wide_exp_sum(const float *row, uint32_t n_col, float max)
{
    struct vec_f64 sum = vec_f64_zero();
    const struct vec m = vec_set(max), zero = vec_set(0), one = vec_set(1);
    for (uint32_t c = 0; c < n_col; c += 16) {
        struct vec v = wide_logits(row, c, n_col);
        struct vec term = vec_if_equal(v, m, one, vec_exp(vec_sub(v, m)));
        sum = vec_f64_add(sum, vec_if_nan(v, zero, term));
    }
    return vec_f64_fold_add(sum);
}

INLINE void wide_softmax_stats(const struct softmax_stats_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + i * a->x_stride;
        float max = wide_row_max(row, a->n_col);
        a->max[i] = max;
        a->argmax[i] = max > -INFINITY ? wide_first_equal(row, a->n_col, max) : 0;
        a->sumexp[i] = max > -INFINITY ? wide_exp_sum(row, a->n_col, max) : 0;
    }
}

#endif
#endif
