/* SPDX-License-Identifier: Apache-2.0 */
/* sum_squares on 16 lanes; order: ref/sum_squares.c. Threads: as ops.h; a thread has whole blocks.
 * */
#ifndef QUIRE_KERNELS_WIDE_SUM_SQUARES_H
#define QUIRE_KERNELS_WIDE_SUM_SQUARES_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_sum_squares(const struct sum_squares_args *a, const struct kern_exec *x)
{
    const struct range blocks = split((a->n + KERN_SUM_BLOCK - 1) / KERN_SUM_BLOCK, x);
    for (size_t b = blocks.begin; b < blocks.end; b++) {
        const float *p = a->x + b * KERN_SUM_BLOCK;
        const size_t left = a->n - b * KERN_SUM_BLOCK;
        const uint32_t n = left < KERN_SUM_BLOCK ? (uint32_t)left : KERN_SUM_BLOCK;
        struct vec_f64 sum = vec_f64_zero();
        uint32_t i = 0;
        for (; i + 16 <= n; i += 16)
            sum = vec_f64_add_squares(sum, vec_load(p + i));
        if (i < n)
            sum = vec_f64_add_squares(sum, vec_load_n(p + i, n - i));
        a->sums[b] = vec_f64_fold_add(sum);
    }
}

#endif
#endif
