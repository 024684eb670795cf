/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,o] = (sum * scale[o]) * rows[i].scale + bias[o] (+ y[i,o]), sum = sum_k q[i,k] * w[o,k]: one
 * f32 accumulator from +0, k ascending, fused multiply-adds of exact products. */
#include <math.h>
#include "kernels/ops/e4m3.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_int8_args *a = args;
    const uint8_t *panel =
        (const uint8_t *)a->w.data + o / KERN_PANEL * int8_panel_bytes(a->w.n_in);
    const uint8_t *x = (const uint8_t *)a->x + i * a->x_stride;
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k++)
        sum = fmaf(e4m3_to_f32(x[k]), e4m3_to_f32(panel[int8_index(o, k)]), sum);
    return sum * element_f32(panel + int8_panel_scales_at(a->w.n_in), DT_F32, o % KERN_PANEL) *
           a->rows[i].scale;
}

void linear_fp8_ref(const struct linear_fp8_args *a, const struct kern_exec *x)
{
    ref_product(REF_PRODUCT(&a->by, sum_of), x);
}
