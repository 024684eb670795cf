/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints_group - a group of inputs of codes_ints.h: its scales to f32, the sums of its
 * products, and these times the scale onto the part of each row.
 * Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_GROUP_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_GROUP_H
#include <string.h>
#include "kernels/wide/codes_ints_sums.h"
#include "kernels/wide/codes_values.h"
#ifdef INTS

/* An array of scales or mins to f32; supers: d or dmin. */
INLINE void codes_open_array(float *to, const struct packed_codes *c, const uint8_t *at,
                             const float *supers)
{
    if (c->scales == KERN_SCALES_BY_256)
        for (uint32_t o = 0; o < KERN_PANEL; o += 16)
            vec_store(to + o, vec_mul(vec_load(supers + o), vec_load_i8((const int8_t *)at + o)));
    else if (c->scales == KERN_SCALES_F16)
        for (uint32_t o = 0; o < KERN_PANEL; o += 16)
            vec_store(to + o, vec_load_f16((const uint16_t *)(const void *)at + o));
    else
        memcpy(to, at, KERN_PANEL * sizeof *to);
}

/* Scales and mins of a group. */
INLINE void codes_open(const struct codes_block *b, const uint8_t *at)
{
    const uint8_t *scales = at + codes_scales_at(b->form);
    const float *supers = (const float *)(const void *)b->supers;
    __builtin_prefetch(scales + b->ahead);
    codes_open_array(b->s->scale, b->form, scales, supers);
    if (b->form->has_min)
        codes_open_array(b->s->min, b->form, scales + codes_mins_at(b->form), supers + KERN_PANEL);
}

/* Through memory: gcc 12 spills sums inside the loop over inputs when the arithmetic follows it. */
INLINE void codes_add(const struct codes_block *b, const struct codes_tile *t, const bool has_min)
{
    const size_t group = t->group;
    for (uint32_t r = 0; r < (uint32_t)t->rows; r++) {
        float *part = b->s->part[t->row + r];
        const floats all = floats_set(b->x[t->row + r].sum[group]);
        UNROLL
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS) {
            load_again(); /* else gcc 12 loads all of them first, and spills */
            floats onto = floats_load(part + o);
            if (has_min)
                onto = floats_fma(floats_load(b->s->min + o), all, onto);
            floats_store(part + o, floats_fma(floats_load(b->s->scale + o),
                                              ints_floats(ints_load(b->s->products[r] + o)), onto));
        }
    }
}

INLINE void codes_group(const struct codes_block *b, struct codes_tile t, const uint8_t *at,
                        const bool packed, const enum codes_form form)
{
    t.n_vec = t.rows == 1 ? (int)KERN_PANEL / INTS : t.rows <= CODES_WIDE_ROWS ? 4 : INTS_STRIP;
    if (form == CODES_OF_PLANES) /* two sums of each */
        t.n_vec = t.rows == 1 || INTS_STRIP == 4 ? 4 : 2;
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
        struct codes_int_sums s;
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s.v[r][j] = ints_set(b->x[t.row + (uint32_t)r].start[t.group]);
        if (form == CODES_OF_PLANES)
            codes_sums_planes(&s, b, &t, at);
        else if (packed)
            codes_sums_packed(&s, b, &t, at, form);
        else
            codes_sums_unpacked(&s, b, &t);
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            ints_store(b->s->products[r] + t.strip + j * INTS, s.v[r][j]);
    }
    if (b->form->has_min)
        codes_add(b, &t, true);
    else
        codes_add(b, &t, false);
}

#endif
#endif
