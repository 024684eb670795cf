/* SPDX-License-Identifier: Apache-2.0 */
/* adamw on 16 lanes; formula and roundings: ref/adamw.c. Threads: as ops.h; a thread has whole
 * groups of 16 elements. */
#ifndef QUIRE_KERNELS_WIDE_ADAMW_H
#define QUIRE_KERNELS_WIDE_ADAMW_H
#include "kernels/tiling/adamw.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void adamw_group(const struct adamw_args *a, const struct adamw_scalars *s, size_t i,
                        uint32_t n)
{
    const struct vec g = vec_mul(vec_set(s->grad_scale), vec_load_n(a->g + i, n));
    const struct vec m =
        vec_add(vec_mul(vec_set(s->beta1), vec_load_n(a->m + i, n)), vec_mul(vec_set(s->rest1), g));
    const struct vec v = vec_add(vec_mul(vec_set(s->beta2), vec_load_n(a->v + i, n)),
                                 vec_mul(vec_mul(vec_set(s->rest2), g), g));
    const struct vec root = vec_add(vec_mul(vec_sqrt(v), vec_set(s->root)), vec_set(s->eps));
    const struct vec step = vec_div(vec_mul(vec_set(s->rate), m), root);
    const struct vec w = vec_sub(vec_mul(vec_set(s->decay), vec_load_n(a->w + i, n)), step);
    vec_store_n(a->w + i, w, n);
    vec_store_n(a->m + i, m, n);
    vec_store_n(a->v + i, v, n);
    if (a->w_bf16)
        vec_store_bf16_n(a->w_bf16 + i, w, n);
}

INLINE void wide_adamw(const struct adamw_args *a, const struct kern_exec *x)
{
    const struct adamw_scalars s = adamw_scalars(a);
    const struct range groups = split((a->n + 15) / 16, x);
    for (size_t g = groups.begin; g < groups.end; g++)
        adamw_group(a, &s, g * 16, a->n - g * 16 < 16 ? (uint32_t)(a->n - g * 16) : 16);
}

#endif
#endif
