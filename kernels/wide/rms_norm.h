/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm on 16 lanes; formula and order: ref/rms_norm.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_RMS_NORM_H
#define QUIRE_KERNELS_WIDE_RMS_NORM_H
#include <math.h>
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* Lane l adds the squares of columns l, l + 16, …: two vectors would be another order. */
INLINE float wide_square_sum(const float *x, uint32_t n_col)
{
    struct vec sum = vec_set(0);
    uint32_t c = 0;
    for (; c + 16 <= n_col; c += 16)
        sum = vec_fma(vec_load(x + c), vec_load(x + c), sum);
    struct vec rest = vec_load_n(x + c, n_col - c); /* +0 in the other lanes: adds nothing */
    return vec_fold_add(vec_fma(rest, rest, sum));
}

INLINE void wide_rms_norm(const struct rms_norm_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + i * a->x_stride;
        float mean = wide_square_sum(row, a->n_col) / (float)a->n_col;
        struct vec r = vec_set(1.0f / sqrtf(mean + a->eps));
        for (uint32_t c = 0; c < a->n_col; c += 16) {
            uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
            struct vec y = vec_mul(vec_mul(vec_load_n(row + c, n), r), vec_load_n(a->w + c, n));
            if (a->y_dtype == DT_F32)
                vec_store_n((float *)a->y + i * a->y_stride + c, y, n);
            else
                vec_store_bf16_n((uint16_t *)a->y + i * a->y_stride + c, y, n);
        }
    }
}

#endif
#endif
