/* SPDX-License-Identifier: Apache-2.0 */
/* Formula and layout: ops_codes.h. Order of products of f32: one f32 accumulator per output, from
 * +0, one fused multiply-add for each k ascending, of x[i,k] and the f32 W[o,k]. Order of products
 * by_ints: one accumulator of KERN_CODES_X inputs, from +0, fused multiply-adds of groups
 * ascending, the min first; one of these parts, from +0, one fused multiply-add each. Where scales
 * are integers too: the chunks of KERN_CODES_X inputs are added, ascending. */
#include <math.h>
#include "kernels/ops/codes_layout.h"
#include "kernels/ops/codes_x.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* The block of KERN_SCALES_BY_256 of group g, and the group in it. */
static const uint8_t *block_of(const struct packed *w, uint32_t o, uint32_t g)
{
    return (const uint8_t *)w->data + o / KERN_PANEL * codes_panel_bytes(&w->codes, w->n_in) +
           codes_block_at(&w->codes, g);
}

/* A scale or min of lane o % 64, of the array at `at`; supers: d or dmin [64]. */
static float scale_of(const struct packed_codes *c, const uint8_t *at, const uint8_t *supers,
                      uint32_t lane)
{
    if (c->scales == KERN_SCALES_BY_256)
        return element_f32(supers, DT_F32, lane) * (float)(int8_t)at[lane];
    return element_f32(at, c->scales == KERN_SCALES_F16 ? DT_F16 : DT_F32, lane);
}

struct group { /* of an output */
    const uint8_t *codes;
    float scale, min;
};

static struct group group_of(const struct packed *w, uint32_t o, uint32_t g)
{
    const struct packed_codes *c = &w->codes;
    const uint32_t lane = o % KERN_PANEL;
    const uint8_t *block = block_of(w, o, g);
    const uint8_t *at = block + codes_group_at(c, g), *scales = at + codes_scales_at(c);
    struct group group = {at, scale_of(c, scales, block, lane), 0};
    if (c->has_min)
        group.min =
            scale_of(c, scales + codes_mins_at(c), block + KERN_PANEL * sizeof(float), lane);
    return group;
}

static float value_of(const struct packed *w, const struct group *g, uint32_t o, uint32_t i)
{
    const enum kern_codes kind = (enum kern_codes)w->codes.kind;
    return codes_value(kind, codes_get(g->codes, &w->codes, o % KERN_PANEL, i));
}

static float x_of(const struct linear_args *a, size_t i, uint32_t k)
{
    return element_f32(a->x, a->x_dtype, i * a->x_stride + k);
}

static float sum_of_floats(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    const uint32_t group = a->w.codes.group;
    float sum = 0;
    for (uint32_t g = 0; g < a->w.n_in / group; g++) {
        const struct group of = group_of(&a->w, o, g);
        for (uint32_t k = 0; k < group; k++)
            sum = fmaf(x_of(a, i, g * group + k),
                       fmaf(of.scale, value_of(&a->w, &of, o, k), of.min), sum);
    }
    return sum;
}

static struct codes_unit unit_of(const struct linear_args *a, size_t i, uint32_t begin,
                                 uint32_t end)
{
    float most = 0;
    for (uint32_t k = begin; k < end; k++) {
        const float x = fabsf(x_of(a, i, k));
        most = isnan(x) || x > most ? x : most; /* NaN once an x was */
    }
    return codes_unit(most);
}

static float sum_of_integers(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    const uint32_t group = a->w.codes.group;
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k += KERN_CODES_X) {
        const uint32_t end = a->w.n_in - k < KERN_CODES_X ? a->w.n_in : k + KERN_CODES_X;
        const struct codes_unit unit = unit_of(a, i, k, end);
        float part = 0;
        for (uint32_t begin = k; begin < end; begin += group) {
            const struct group of = group_of(&a->w, o, begin / group);
            int32_t products = 0, all = 0;
            for (uint32_t j = 0; j < group; j++) {
                const int32_t n = codes_x(x_of(a, i, begin + j), unit.inverse);
                products += n * (int32_t)value_of(&a->w, &of, o, j);
                all += n;
            }
            if (a->w.codes.has_min)
                part = fmaf(of.min, (float)all, part);
            part = fmaf(of.scale, (float)products, part);
        }
        sum = fmaf(unit.unit, part, sum);
    }
    return sum;
}

/* What a sum of scaled integers is made of: a chunk's products, and a block's mins. */
static int32_t chunk_of(const struct linear_args *a, size_t i, uint32_t o, struct range k,
                        float inverse)
{
    const struct packed_codes *c = &a->w.codes;
    int32_t sum = 0;
    for (uint32_t j = (uint32_t)k.begin; j < k.end; j++) {
        const struct group of = group_of(&a->w, o, j / c->group);
        const int8_t scale = (int8_t)of.codes[codes_scales_at(c) + o % KERN_PANEL];
        sum += codes_x(x_of(a, i, j), inverse) * scale *
               (int32_t)value_of(&a->w, &of, o, j % c->group);
    }
    return sum;
}

static int32_t mins_of(const struct linear_args *a, size_t i, uint32_t o, struct range k,
                       float inverse)
{
    const struct packed_codes *c = &a->w.codes;
    int32_t sum = 0;
    for (uint32_t j = (uint32_t)k.begin; j < k.end; j++) {
        const uint8_t *codes = group_of(&a->w, o, j / c->group).codes;
        sum += codes_x(x_of(a, i, j), inverse) *
               (int8_t)codes[codes_scales_at(c) + codes_mins_at(c) + o % KERN_PANEL];
    }
    return sum;
}

static float sum_of_scaled(const void *args, size_t i, uint32_t o)
{
    const struct linear_args *a = args;
    const struct packed_codes *c = &a->w.codes;
    const uint32_t chunk = codes_chunk(c), lane = o % KERN_PANEL;
    float sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k += KERN_CODES_X) {
        const struct range all = {k, k + KERN_CODES_X};
        const struct codes_unit unit = unit_of(a, i, k, k + KERN_CODES_X);
        const uint8_t *supers = block_of(&a->w, o, k / c->group);
        float part = 0;
        for (uint32_t j = k; j < k + KERN_CODES_X; j += chunk)
            part += (float)chunk_of(a, i, o, (struct range){j, j + chunk}, unit.inverse);
        const float d = element_f32(supers, DT_F32, lane);
        if (c->has_min)
            part = fmaf(d, part,
                        element_f32(supers, DT_F32, KERN_PANEL + lane) *
                            (float)mins_of(a, i, o, all, unit.inverse));
        else
            part = d * part;
        sum = fmaf(unit.unit, part, sum);
    }
    return sum;
}

void linear_codes_ref(const struct linear_codes_args *args, const struct kern_exec *x)
{
    const struct linear_args *a = &args->by;
    if (codes_is_scaled(&a->w.codes))
        ref_product(REF_PRODUCT(a, sum_of_scaled), x);
    else
        ref_product(REF_PRODUCT(a, a->w.codes.by_ints ? sum_of_integers : sum_of_floats), x);
}
