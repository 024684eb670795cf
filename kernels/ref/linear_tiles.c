/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W in the order of TDPBF16PS; kcheck compares linear_amx with it.
 * Formula and all else: ref/linear.c.
 *
 * Order: one f32 accumulator per output, from +0, and blocks of 32 along k. In a block the products
 * of even k and those of odd k are summed apart, each from +0, one fused multiply-add for each k in
 * ascending order; the accumulator takes the sum of the two. Each step is rounded once, subnormal
 * inputs and results are zero. The last block may be shorter. (The instruction was verified to
 * compute exactly this on 768000 random sums, Sapphire Rapids, 2026-11; Intel SDM volume 2 has the
 * same definition.) */
#include <float.h>
#include <math.h>
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

#define BLOCK 32u

static float flush_subnormal(float f)
{
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    const uint16_t *row = (const uint16_t *)a->x + i * a->x_stride;
    const uint16_t *w = a->w.data;
    float sum = 0;
    for (uint32_t block = 0; block < a->w.n_in; block += BLOCK) {
        float part[2] = {0, 0};
        uint32_t end = a->w.n_in - block < BLOCK ? a->w.n_in : block + BLOCK;
        for (uint32_t k = block; k < end; k++) {
            float x = flush_subnormal(bf16_to_f32(row[k]));
            float of_w = flush_subnormal(bf16_to_f32(w[packed_index(DT_BF16, a->w.n_in, o, k)]));
            part[k % 2] = flush_subnormal(fmaf(x, of_w, part[k % 2]));
        }
        sum = flush_subnormal(flush_subnormal(part[0] + part[1]) + sum);
    }
    return sum;
}

void linear_ref_tiles(const struct linear_args *a, const struct kern_exec *x)
{
    ref_product(REF_PRODUCT(a, sum_of), x);
}
