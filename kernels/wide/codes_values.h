/* SPDX-License-Identifier: Apache-2.0 */
/* codes_values - scales and values of codes on 16 lanes, for linear_codes.h and codes_few.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_CODES_VALUES_H
#define QUIRE_KERNELS_WIDE_CODES_VALUES_H
#include "kernels/ops/codes_layout.h"
#include "kernels/wide/vec.h"
#ifdef __AVX512BW__
#include "kernels/avx512/vec_codes.h"
#else
#include "kernels/avx2/vec_codes.h"
#endif
#ifdef VEC_SUMS

struct codes_part { /* inputs of one group, of a panel */
    const struct packed_codes *form;
    const uint8_t *codes;           /* from the first of them on */
    const uint8_t *scales, *supers; /* the group's; its block's */
    uint32_t n;                     /* inputs, even */
};

/* Scales (or, behind them, mins) of outputs lane … lane + 15. */
INLINE struct vec codes_array(const struct codes_part *p, uint32_t lane, bool min)
{
    const uint8_t *at = p->scales + (min ? codes_mins_at(p->form) : 0);
    const float *supers = (const float *)(const void *)p->supers + (min ? KERN_PANEL : 0);
    if (p->form->scales == KERN_SCALES_F32)
        return vec_load((const float *)(const void *)at + lane);
    if (p->form->scales == KERN_SCALES_F16)
        return vec_load_f16((const uint16_t *)(const void *)at + lane);
    return vec_mul(vec_load(supers + lane), vec_load_i8((const int8_t *)at + lane));
}

/* How codes become values: int8; 4 bits that are the value; 4 bits by a table. */
enum codes_way { CODES_BYTES, CODES_HALVES, CODES_INTS, CODES_FLOATS };

/* KERN_CODES_SIGNED without mins is halves with the min -8 scale: one rounding of
 * scale (q - 8) either way, since -8 scale is exact. */
INLINE bool codes_is_shifted(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_SIGNED && !c->has_min;
}
INLINE enum codes_way codes_way_of(const struct packed_codes *c)
{
    if (codes_is_bytes(c))
        return CODES_BYTES;
    if (c->kind == KERN_CODES_HALVES || codes_is_shifted(c))
        return CODES_HALVES;
    return c->kind < KERN_CODES_INT_END ? CODES_INTS : CODES_FLOATS;
}

struct codes_scales {
    struct vec scale, min;
};
INLINE struct codes_scales codes_scales_of(const struct codes_part *p, uint32_t lane)
{
    struct codes_scales s = {codes_array(p, lane, false), vec_set(0)};
    if (p->form->has_min)
        s.min = codes_array(p, lane, true);
    else if (codes_is_shifted(p->form))
        s.min = vec_mul(s.scale, vec_set(-8));
    return s;
}

/* Bytes from the codes of an input to those of the next one, times two. */
INLINE size_t codes_pair_bytes(const enum codes_way way)
{
    return way == CODES_BYTES ? 2 * (size_t)KERN_PANEL : KERN_PANEL;
}

struct codes_table { /* of the way that needs it */
    const int8_t *ints;
    struct vec floats;
};
INLINE struct codes_table codes_table_of(const struct packed_codes *c, const enum codes_way way)
{
    return (struct codes_table){
        codes_ints[way == CODES_INTS ? c->kind : 0],
        vec_load(codes_floats[way == CODES_FLOATS ? c->kind - KERN_CODES_INT_END : 0]),
    };
}

/* Values of two inputs, of 16 outputs whose codes begin at `at`. */
INLINE struct vec_two codes_pair(const uint8_t *at, const struct codes_table *t,
                                 const enum codes_way way)
{
    switch (way) {
    case CODES_BYTES:
        return (struct vec_two){vec_load_i8((const int8_t *)at),
                                vec_load_i8((const int8_t *)at + KERN_PANEL)};
    case CODES_HALVES:
        return vec_code_halves(at);
    case CODES_INTS:
        return vec_code_ints(at, t->ints);
    default:
        return vec_code_floats(at, t->floats);
    }
}

#endif
#endif
