/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm_grad on 16 lanes; formula and order: ref/layer_norm_grad.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LAYER_NORM_GRAD_H
#define QUIRE_KERNELS_WIDE_LAYER_NORM_GRAD_H
#include "kernels/wide/layer_norm.h"
#ifdef VEC_SUMS

/* dy * w of up to 16 columns; +0 in the other lanes. */
INLINE struct vec layer_norm_grad_g(const struct layer_norm_grad_args *a, const float *dy,
                                    uint32_t c, uint32_t n)
{
    return vec_mul(vec_load_n(dy + c, n), vec_load_n(a->w + c, n));
}

INLINE void layer_norm_grad_unit(const struct layer_norm_grad_args *a, size_t i)
{
    const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col;
    const float *x = a->x + row * a->x_stride + at, *dy = a->dy + row * a->dy_stride + at;
    float *dx = a->dx + row * a->dx_stride + at;
    const float n_col = (float)a->n_col;
    const float mean_x = wide_mean(x, a->n_col);
    const struct vec mean = vec_set(mean_x);
    struct vec sums = vec_set(0), products = vec_set(0);
    for (uint32_t c = 0; c < a->n_col; c += 16) {
        const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
        const struct vec g = layer_norm_grad_g(a, dy, c, n);
        const struct vec d = vec_first(n, vec_sub(vec_load_n(x + c, n), mean), vec_set(0));
        sums = vec_add(sums, g);
        products = vec_fma(g, d, products);
    }
    const float r = 1.0f / sqrtf(wide_variance(x, a->n_col, mean) + a->eps);
    const struct vec shift = vec_set(vec_fold_add(sums) / n_col);
    const struct vec m = vec_set(vec_fold_add(products) / n_col * r * r);
    for (uint32_t c = 0; c < a->n_col; c += 16) {
        const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
        const struct vec g = vec_sub(layer_norm_grad_g(a, dy, c, n), shift);
        const struct vec d =
            vec_mul(vec_set(r), vec_fnma(vec_sub(vec_load_n(x + c, n), mean), m, g));
        vec_store_n(dx + c, a->accumulate ? vec_add(vec_load_n(dx + c, n), d) : d, n);
    }
    a->mean[i] = mean_x;
    a->r[i] = r;
}

INLINE void wide_layer_norm_grad(const struct layer_norm_grad_args *a, const struct kern_exec *x)
{
    const struct range units = split((size_t)a->n_row * a->n_unit, x);
    for (size_t i = units.begin; i < units.end; i++)
        layer_norm_grad_unit(a, i);
}

#endif
#endif
