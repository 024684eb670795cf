/* SPDX-License-Identifier: Apache-2.0 */
/* Formula and layout: ops_codes.h. Order: one f32 accumulator per output, from +0, one fused
 * multiply-add for each k ascending, of x[i,k] and the f32 W[o,k]. */
#include <math.h>
#include "kernels/ops/codes_layout.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* A scale or min of lane o % 64, of the array at `at`; supers: d or dmin [64]. */
static float scale_of(const struct packed_codes *c, const uint8_t *at, const uint8_t *supers,
                      uint32_t lane)
{
    if (c->scales == KERN_SCALES_BY_256)
        return element_f32(supers, DT_F32, lane) * (float)(int8_t)at[lane];
    return element_f32(at, c->scales == KERN_SCALES_F16 ? DT_F16 : DT_F32, lane);
}

static float weight(const struct packed *w, uint32_t o, uint32_t k)
{
    const struct packed_codes *c = &w->codes;
    const uint32_t g = k / c->group, i = k % c->group, lane = o % KERN_PANEL;
    const uint8_t *block = (const uint8_t *)w->data +
                           o / KERN_PANEL * codes_panel_bytes(c, w->n_in) + codes_block_at(c, g);
    const uint8_t *at = block + codes_group_at(c, g), *scales = at + codes_scales_at(c);
    const uint8_t code = c->kind == KERN_CODES_BYTES
                             ? at[i * KERN_PANEL + lane]
                             : at[i / 2 * KERN_PANEL + lane] >> (i % 2 * 4) & 15;
    const float min = c->has_min ? scale_of(c, scales + codes_mins_at(c),
                                            block + KERN_PANEL * sizeof(float), lane)
                                 : 0;
    return fmaf(scale_of(c, scales, block, lane), codes_value((enum kern_codes)c->kind, code), min);
}

static float sum_of(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k++)
        sum = fmaf(element_f32(a->x, a->x_dtype, i * a->x_stride + k), weight(&a->w, o, k), sum);
    return sum;
}

void linear_codes_ref(const struct linear_codes_args *args, const struct kern_exec *x)
{
    const struct linear_args *a = &args->by;
    ref_product(REF_PRODUCT(a, sum_of), x);
}
