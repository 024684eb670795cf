/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,o] = sum_k x[i,k] * W[o,k] + bias[o] (+ y[i,o]).
 *
 * Order: one f32 accumulator per output, from +0, one fused multiply-add for each k. With f32 or
 * f16 x: k = 0, 1, 2, … With bf16 x and W, as vdpbf16ps does it: pairs in order, the odd element of
 * a pair before the even one (1, 0, 3, 2, …), subnormal inputs and sums taken as zero; an odd n_in
 * has a last pair whose odd product is 0. (The instruction was verified to compute exactly this on
 * 39 million random operands, Zen 5, 2026-11.) Then + bias, then + the old y. */
#include <float.h>
#include <math.h>
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

static float dot_in_order(const struct linear_args *a, size_t i, uint32_t o)
{
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k++)
        sum = fmaf(element_f32(a->x, a->x_dtype, i * a->x_stride + k),
                   element_f32(a->w.data, a->w.dtype, packed_index(a->w.dtype, a->w.n_in, o, k)),
                   sum);
    return sum;
}

/* Subnormal -> zero of the same sign. */
static float flush_subnormal(float f)
{
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

static float dot_bf16(const struct linear_args *a, const uint16_t *row, uint32_t o)
{
    const uint16_t *w = a->w.data;
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k += 2) {
        size_t at = packed_index(DT_BF16, a->w.n_in, o, k);
        float odd = k + 1 < a->w.n_in ? bf16_to_f32(row[k + 1]) : 0;
        sum = flush_subnormal(
            fmaf(flush_subnormal(odd), flush_subnormal(bf16_to_f32(w[at + 1])), sum));
        sum = flush_subnormal(
            fmaf(flush_subnormal(bf16_to_f32(row[k])), flush_subnormal(bf16_to_f32(w[at])), sum));
    }
    return sum;
}

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    return a->x_dtype == DT_BF16 ? dot_bf16(a, (const uint16_t *)a->x + i * a->x_stride, o)
                                 : dot_in_order(a, i, o);
}

void linear_ref(const struct linear_args *a, const struct kern_exec *x)
{
    ref_product(REF_PRODUCT(a, sum_of), x);
}
