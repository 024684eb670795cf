/* SPDX-License-Identifier: Apache-2.0 */
/* codes_values - scales of codes, and values that are floats, on 16 lanes, for linear_codes.h,
 * codes_few.h and codes_ints.h.
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

struct codes_scales {
    struct vec scale, min;
};
INLINE struct codes_scales codes_scales_of(const struct codes_part *p, uint32_t lane)
{
    return (struct codes_scales){
        codes_array(p, lane, false),
        p->form->has_min ? codes_array(p, lane, true) : vec_set(0),
    };
}

/* Values that are floats. Bytes from the codes of two inputs to those of the next two. */
#define CODES_PAIR_BYTES ((size_t)KERN_PANEL)

INLINE struct vec codes_table_of(const struct packed_codes *c)
{
    return vec_load(codes_floats[c->kind - KERN_CODES_INT_END]);
}

#endif
#endif
