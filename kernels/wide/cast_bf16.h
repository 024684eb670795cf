/* SPDX-License-Identifier: Apache-2.0 */
/* cast_bf16 on 16 lanes. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_CAST_BF16_H
#define QUIRE_KERNELS_WIDE_CAST_BF16_H
#include "kernels/wide/columns.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_cast_bf16(const struct cast_bf16_args *a, const struct kern_exec *x)
{
    struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        struct chunk k = chunk_at(i, a->n_col);
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            uint32_t n = k.end - c < 16 ? k.end - c : 16;
            vec_store_bf16_n(a->y + k.row * a->y_stride + c,
                             vec_load_n(a->x + k.row * a->x_stride + c, n), n);
        }
    }
}

#endif
#endif
