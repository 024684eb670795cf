/* SPDX-License-Identifier: Apache-2.0 */
/* gate_rows on 16 lanes; formula: ops_elementwise.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_GATE_ROWS_H
#define QUIRE_KERNELS_WIDE_GATE_ROWS_H
#include "kernels/wide/columns.h"
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

INLINE void wide_gate_rows(const struct gate_rows_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        const float *from = a->x + k.row * a->x_stride, *gate = a->gate + k.row * a->gate_stride;
        float *to = a->y + k.row * a->y_stride;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            const uint32_t n = k.end - c < 16 ? k.end - c : 16;
            const struct vec g = vec_load_n(gate + c, n), one = vec_set(1.0f);
            struct vec v = vec_load_n(from + c, n);
            if (a->by != KERN_GATE_SIGMOID)
                v = vec_mul(v, g);
            if (a->by != KERN_GATE_PRODUCT)
                v = vec_div(v, vec_add(one, vec_exp(vec_sub(vec_set(0), g))));
            vec_store_n(to + c, v, n);
        }
    }
}

#endif
#endif
