/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,o] = sum_b (sum_{k in b} q[i,k] * w[o,k]) * (x_scale[i,b] * w_scale[o / 16, b]) + bias[o]
 * (+ y[i,o]): of a block one f32 accumulator from +0, k ascending, fused multiply-adds of exact
 * products; blocks ascending, from +0, a fused multiply-add each with the rounded product of both
 * scales. */
#include <math.h>
#include "kernels/ops/e4m3.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_fp8_block_args *a = args;
    const size_t n_block = fp8_n_block(a->w.n_in);
    const uint8_t *panel =
        (const uint8_t *)a->w.data + o / KERN_PANEL * fp8_block_panel_bytes(a->w.n_in);
    const float *of_w = (const float *)(const void *)(panel + int8_panel_scales_at(a->w.n_in)) +
                        o % KERN_PANEL / KERN_GATE_INTERLEAVE * n_block;
    const float *of_x = a->x_scales + i * a->scale_stride;
    const uint8_t *x = a->x + i * a->x_stride;
    float sum = 0;
    for (uint32_t b = 0, k = 0; b < n_block; b++) {
        const uint32_t end = a->w.n_in - k < KERN_FP8_BLOCK ? a->w.n_in : k + KERN_FP8_BLOCK;
        float part = 0;
        for (; k < end; k++)
            part = fmaf(e4m3_to_f32(x[k]), e4m3_to_f32(panel[int8_index(o, k)]), part);
        sum = fmaf(part, of_x[b] * of_w[b], sum);
    }
    return sum;
}

void linear_fp8_block_ref(const struct linear_fp8_block_args *a, const struct kern_exec *x)
{
    ref_product(REF_PRODUCT(a, sum_of), x);
}
