/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm on 16 lanes; formula and order: ref/layer_norm.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LAYER_NORM_H
#define QUIRE_KERNELS_WIDE_LAYER_NORM_H
#include <math.h>
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* Lanes from n on are +0 when loaded, and remain +0. */
INLINE float wide_mean(const float *x, uint32_t n_col)
{
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < n_col; c += 16)
        sum = vec_add(sum, vec_load_n(x + c, n_col - c < 16 ? n_col - c : 16));
    return vec_fold_add(sum) / (float)n_col;
}

INLINE float wide_variance(const float *x, uint32_t n_col, struct vec mean)
{
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < n_col; c += 16) {
        const uint32_t n = n_col - c < 16 ? n_col - c : 16;
        const struct vec d = vec_first(n, vec_sub(vec_load_n(x + c, n), mean), vec_set(0));
        sum = vec_fma(d, d, sum);
    }
    return vec_fold_add(sum) / (float)n_col;
}

INLINE void wide_layer_norm(const struct layer_norm_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + (a->rows ? a->rows[i] : i) * a->x_stride;
        const struct vec mean = vec_set(wide_mean(row, a->n_col));
        const struct vec r = vec_set(1.0f / sqrtf(wide_variance(row, a->n_col, mean) + a->eps));
        for (uint32_t c = 0; c < a->n_col; c += 16) {
            const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
            const struct vec d = vec_mul(vec_sub(vec_load_n(row + c, n), mean), r);
            const struct vec w = vec_load_n(a->w + c, n);
            const struct vec y = a->b ? vec_fma(d, w, vec_load_n(a->b + c, n)) : vec_mul(d, w);
            if (a->y_dtype == DT_F32)
                vec_store_n((float *)a->y + i * a->y_stride + c, y, n);
            else
                vec_store_bf16_n((uint16_t *)a->y + i * a->y_stride + c, y, n);
        }
    }
}

#endif
#endif
