/* SPDX-License-Identifier: Apache-2.0 */
/* Formula: ops_int4.h. Order: within a group one f32 accumulator from +0, fused multiply-adds over
 * k ascending (q - zero is an integer, exact); acc = fma(scale, group, acc), groups ascending,
 * from +0. */
#include <math.h>
#include "kernels/ops/int4_layout.h"
#include "kernels/ref/element.h"
#include "kernels/ref/epilogue.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float of_group(const struct linear_args *a, size_t i, uint32_t g, const uint8_t *at,
                      uint32_t lane)
{
    const int zero = at[int4_scales_at(a->w.group) + INT4_ZEROS_AT + lane];
    float sum = 0;
    for (uint32_t k = 0; k < a->w.group; k++) {
        const uint8_t both = at[((size_t)(k / 8) * KERN_PANEL + lane) * 4 + k % 4];
        const float x = element_f32(a->x, a->x_dtype, i * a->x_stride + g * a->w.group + k);
        sum = fmaf(x, (float)((k % 8 < 4 ? both & 15 : both >> 4) - zero), sum);
    }
    return sum;
}

static float dot(const struct linear_args *a, size_t i, uint32_t o)
{
    const uint8_t *at =
        (const uint8_t *)a->w.data + o / KERN_PANEL * int4_panel_bytes(a->w.n_in, a->w.group);
    float acc = 0;
    for (uint32_t g = 0; g < a->w.n_in / a->w.group; g++, at += int4_group_bytes(a->w.group)) {
        const float scale = element_f32(at + int4_scales_at(a->w.group), DT_F16, o % KERN_PANEL);
        acc = fmaf(scale, of_group(a, i, g, at, o % KERN_PANEL), acc);
    }
    return acc;
}

void linear_w4a16_ref(const struct linear_w4a16_args *args, const struct kern_exec *x)
{
    const struct linear_args *a = &args->by;
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const uint32_t begin = (uint32_t)panels.begin * KERN_PANEL;
    const uint32_t end = (uint32_t)panels.end * KERN_PANEL;
    const struct epilogue f = EPILOGUE_OF(a);
    float sum[KERN_PANEL];
    for (size_t i = 0; i < a->n_row; i++)
        for (uint32_t o = begin; o < end && o < a->w.n_out; o += KERN_PANEL) {
            const uint32_t n = a->w.n_out - o < KERN_PANEL ? a->w.n_out - o : KERN_PANEL;
            for (uint32_t j = 0; j < n; j++)
                sum[j] = dot(a, i, o + j);
            ref_epilogue(&f, sum, i, o, n);
        }
}
