/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows on 16 lanes; formula: ref/quant_rows.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_QUANT_ROWS_H
#define QUIRE_KERNELS_WIDE_QUANT_ROWS_H
#include "kernels/ops/int8_layout.h"
#include "kernels/wide/int8.h"
#ifdef VEC_SUMS

/* 16 inputs of a row, from d on, and zeros past its end. */
INLINE struct vec wide_quant_load(const struct quant_rows_args *a, const float *row, uint32_t d)
{
    const uint32_t n = d >= a->n_col ? 0 : a->n_col - d < 16 ? a->n_col - d : 16;
    if (a->order)
        return vec_gather_n(row, a->order + (n ? d : 0), n);
    return n == 16 ? vec_load(row + d) : vec_load_n(row + (n ? d : 0), n);
}

/* The sum of the row is of integers below 2^24 per lane, so it is exact in f32 too. `next`: the row
 * to prefetch, or this one. */
INLINE void wide_quant_row(const struct quant_rows_args *a, size_t i, const float *next)
{
    const float *from = a->x + i * a->x_stride;
    const struct int8_scale s = wide_int8_scale(from, a->n_col);
    int8_t *to = a->q + i * a->q_stride;
    int16_t *sums = a->sums ? a->sums + i * a->q_stride / KERN_INT8_SUM : NULL;
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < int8_k(a->n_col); c += KERN_INT8_SUM) {
        const struct vec x = wide_int8_round(wide_quant_load(a, from, c), s.inverse);
        const struct vec y = wide_int8_round(wide_quant_load(a, from, c + 16), s.inverse);
        const struct vec part = vec_add(x, y);
        __builtin_prefetch(next + c);
        __builtin_prefetch(next + c + 16);
        vec_store_i8_n(to + c, x, 16);
        vec_store_i8_n(to + c + 16, y, 16);
        sum = vec_add(sum, part);
        if (sums)
            sums[c / KERN_INT8_SUM] = (int16_t)vec_fold_add(part);
    }
    a->rows[i] = (struct quant_row){s.scale, (int32_t)vec_fold_add(sum)};
}

INLINE void wide_quant_rows(const struct quant_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        wide_quant_row(a, i, a->x + (i + 1 < rows.end ? i + 1 : i) * a->x_stride);
}

#endif
#endif
