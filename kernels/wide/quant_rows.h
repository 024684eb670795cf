/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows on 16 lanes; formula: ref/quant_rows.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_QUANT_ROWS_H
#define QUIRE_KERNELS_WIDE_QUANT_ROWS_H
#include "kernels/quant_layout.h"
#include "kernels/wide/int8.h"
#ifdef VEC_SUMS

/* The sum of the row is of integers below 2^24 a lane, so it is exact in f32 too. */
INLINE void wide_quant_row(int8_t *to, struct quant_row *row, const float *from, uint32_t n_col)
{
    const struct int8_scale s = wide_int8_scale(from, n_col);
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < quant_k(n_col); c += 16) {
        uint32_t n = c >= n_col ? 0 : n_col - c < 16 ? n_col - c : 16;
        struct vec q = wide_int8_round(vec_load_n(from + (n ? c : 0), n), s.inverse);
        sum = vec_add(sum, q);
        vec_store_i8_n(to + c, q, 16);
    }
    *row = (struct quant_row){s.scale, (int32_t)vec_fold_add(sum)};
}

INLINE void wide_quant_rows(const struct quant_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        wide_quant_row(a->q + i * a->q_stride, &a->rows[i], a->x + i * a->x_stride, a->n_col);
}

#endif
#endif
