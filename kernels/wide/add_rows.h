/* SPDX-License-Identifier: Apache-2.0 */
/* add_rows on 16 lanes; formula: ops_elementwise.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ADD_ROWS_H
#define QUIRE_KERNELS_WIDE_ADD_ROWS_H
#include "kernels/tiling/grow.h"
#include "kernels/wide/columns.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_add_rows(const struct add_rows_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        const struct vec scale = vec_set(row_scale(a, k.row));
        const float *from = a->x + k.row * a->x_stride;
        float *to = a->y + k.row * a->y_stride;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            const uint32_t n = k.end - c < 16 ? k.end - c : 16;
            const struct vec v = vec_mul(scale, vec_load_n(from + c, n));
            vec_store_n(to + c, a->set ? v : vec_add(vec_load_n(to + c, n), v), n);
        }
    }
}

#endif
#endif
