/* SPDX-License-Identifier: Apache-2.0 */
/* sums[b] = sum of x^2 of a block: 16 f64 lanes, lane l adds elements l, l + 16, … of the block (a
 * square is exact in f64), folded by halves. */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void sum_squares_ref(const struct sum_squares_args *a, const struct kern_exec *x)
{
    const struct range blocks = split((a->n + KERN_SUM_BLOCK - 1) / KERN_SUM_BLOCK, x);
    for (size_t b = blocks.begin; b < blocks.end; b++) {
        const float *p = a->x + b * KERN_SUM_BLOCK;
        const size_t left = a->n - b * KERN_SUM_BLOCK;
        double lane[16] = {0};
        for (size_t i = 0; i < left && i < KERN_SUM_BLOCK; i++)
            lane[i % 16] += (double)p[i] * (double)p[i];
        for (uint32_t half = 8; half; half /= 2)
            for (uint32_t l = 0; l < half; l++)
                lane[l] += lane[l + half];
        a->sums[b] = lane[0];
    }
}
