/* SPDX-License-Identifier: Apache-2.0 */
/* moe_combine on 16 lanes; formula and order: ref/moe_combine.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_MOE_COMBINE_H
#define QUIRE_KERNELS_WIDE_MOE_COMBINE_H
#include "kernels/ops/ops_moe.h"
#include "kernels/wide/columns.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_moe_combine(const struct moe_combine_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        const uint32_t *places = a->places + k.row * a->n_used;
        const float *weights = a->weights ? a->weights + k.row * a->n_used : NULL;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            const uint32_t n = k.end - c < 16 ? k.end - c : 16;
            float *at = a->y + k.row * a->y_stride + c;
            struct vec y = a->set ? vec_set(0) : vec_load_n(at, n);
            for (uint32_t j = 0; j < a->n_used; j++)
                y = vec_fma(vec_set(weights ? weights[j] : 1),
                            vec_load_n(a->x + places[j] * a->x_stride + c, n), y);
            vec_store_n(at, y, n);
        }
    }
}

#endif
#endif
