/* SPDX-License-Identifier: Apache-2.0 */
/* embed_grad on 16 lanes; formula and order: ref/embed_grad.c. Threads: as ops.h; a thread has
 * whole groups of 16 columns. */
#ifndef QUIRE_KERNELS_WIDE_EMBED_GRAD_H
#define QUIRE_KERNELS_WIDE_EMBED_GRAD_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_embed_grad(const struct embed_grad_args *a, const struct kern_exec *x)
{
    const struct range groups = split(((size_t)a->n_col + 15) / 16, x);
    const size_t end = groups.end * 16 < a->n_col ? groups.end * 16 : a->n_col;
    const struct vec scale = vec_set(a->scale);
    for (size_t i = 0; i < a->n_row; i++) {
        float *to = a->dtable + (size_t)a->ids[i] * a->n_col;
        const float *dy = a->dy + i * a->dy_stride;
        for (size_t c = groups.begin * 16; c < end; c += 16) {
            const uint32_t n = end - c < 16 ? (uint32_t)(end - c) : 16;
            vec_store_n(to + c, vec_fma(scale, vec_load_n(dy + c, n), vec_load_n(to + c, n)), n);
        }
    }
}

#endif
#endif
