/* SPDX-License-Identifier: Apache-2.0 */
/* convert on 16 lanes; definition: ref/convert.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_CONVERT_H
#define QUIRE_KERNELS_WIDE_CONVERT_H
#include "kernels/wide/columns.h"
#include "kernels/wide/store.h"
#ifdef VEC_SUMS

INLINE void wide_convert(const struct convert_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            const uint32_t n = k.end - c < 16 ? k.end - c : 16;
            wide_store_at(a->y, a->y_dtype, k.row * a->y_stride + c,
                          wide_load_at(a->x, a->x_dtype, k.row * a->x_stride + c, n), n);
        }
    }
}

#endif
#endif
