/* SPDX-License-Identifier: Apache-2.0 */
/* silu_mul on 16 lanes; formula: ref/silu_mul.c; exp: wide/exp.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_SILU_MUL_H
#define QUIRE_KERNELS_WIDE_SILU_MUL_H
#include "kernels/wide/columns.h"
#include "kernels/wide/silu.h"
#ifdef VEC_SUMS

INLINE void wide_silu_mul(const struct silu_mul_args *a, const struct kern_exec *x)
{
    struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        struct chunk k = chunk_at(i, a->n_col);
        const float *gate = a->x + k.row * a->x_stride, *up = gate + a->n_col;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            uint32_t n = k.end - c < 16 ? k.end - c : 16;
            struct vec y = vec_silu_mul(vec_load_n(gate + c, n), vec_load_n(up + c, n));
            if (a->y_dtype == DT_F32)
                vec_store_n((float *)a->y + k.row * a->y_stride + c, y, n);
            else
                vec_store_bf16_n((uint16_t *)a->y + k.row * a->y_stride + c, y, n);
        }
    }
}

#endif
#endif
