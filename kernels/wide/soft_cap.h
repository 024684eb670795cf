/* SPDX-License-Identifier: Apache-2.0 */
/* soft_cap on 16 lanes; formula: ops_elementwise.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_SOFT_CAP_H
#define QUIRE_KERNELS_WIDE_SOFT_CAP_H
#include "kernels/wide/columns.h"
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

/* tanh with a small relative error near 0 too: up to 0.6 it is x + x^3 p(x^2), p of degree 4 a
 * minimax fit of the relative error, 0.08 * 2^-24 (Lawson's iteration on 6000 points), rounded to
 * f32; beyond, vec_tanh. */
INLINE struct vec vec_tanh_near(struct vec x)
{
    const struct vec u = vec_mul(x, x);
    struct vec p = vec_set(-0x1.8257b2p-8f);
    p = vec_fma(p, u, vec_set(0x1.54b88p-6f));
    p = vec_fma(p, u, vec_set(-0x1.b898dap-5f));
    p = vec_fma(p, u, vec_set(0x1.1109aep-3f));
    p = vec_fma(p, u, vec_set(-0x1.55553ep-2f));
    return vec_if_above(vec_abs(x), vec_set(0.6f), vec_tanh(x), vec_fma(vec_mul(x, u), p, x));
}

INLINE void wide_soft_cap(const struct soft_cap_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    const struct vec cap = vec_set(a->cap);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        float *row = a->x + k.row * a->x_stride;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            const uint32_t n = k.end - c < 16 ? k.end - c : 16;
            const struct vec x16 = vec_load_n(row + c, n);
            const struct vec low = vec_max(vec_sub(vec_set(0), cap), x16);
            const struct vec y =
                a->hard ? vec_min(cap, low) : vec_mul(cap, vec_tanh_near(vec_div(x16, cap)));
            vec_store_n(row + c, y, n);
        }
    }
}

#endif
#endif
