/* SPDX-License-Identifier: Apache-2.0 */
/* The formula and its order are in ops_int4.h. */
#include <math.h>
#include "kernels/ops/int4_layout.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* d[g] of row i and output o, whose group starts at `at`. */
static float of_group(const struct linear_int8_args *a, size_t i, uint32_t g, const uint8_t *at,
                      uint32_t lane)
{
    const int8_t *x = a->x + i * a->x_stride + (size_t)g * a->w.group;
    int32_t sum = 0, of_x = 0;
    for (uint32_t k = 0; k < a->w.group; k++) {
        uint8_t both = at[((size_t)(k / 8) * KERN_PANEL + lane) * 4 + k % 4];
        sum += x[k] * (k % 8 < 4 ? both & 15 : both >> 4);
        of_x += x[k];
    }
    return (float)(sum - at[int4_scales_at(a->w.group) + INT4_ZEROS_AT + lane] * of_x);
}

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_int8_args *a = args;
    const uint8_t *at =
        (const uint8_t *)a->w.data + o / KERN_PANEL * int4_panel_bytes(a->w.n_in, a->w.group);
    float acc = 0;
    for (uint32_t g = 0; g < a->w.n_in / a->w.group; g++, at += int4_group_bytes(a->w.group)) {
        float scale = element_f32(at + int4_scales_at(a->w.group), DT_F16, o % KERN_PANEL);
        acc = fmaf(scale, of_group(a, i, g, at, o % KERN_PANEL), acc);
    }
    return acc * a->rows[i].scale;
}

void linear_w4a8_ref(const struct linear_w4a8_args *args, const struct kern_exec *x)
{
    const struct linear_int8_args *a = &args->by;
    ref_product(REF_PRODUCT(a, sum_of), x);
}
