/* SPDX-License-Identifier: Apache-2.0 */
/* int4_fit - the scale and the zero of a group of weights; formula: ref/pack_int4.c. Private to
 * kernels/, shared by all variants. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_INT4_FIT_H
#define QUIRE_KERNELS_TILING_INT4_FIT_H
#include <math.h>
#include "kernels/ops/int4_layout.h"

struct int4_fit {
    float scale, inverse; /* inverse: of the stored scale */
    float zero;
    uint16_t stored; /* scale as f16 */
};

#define INT4_RANGE_MAX 900000.0f /* 15 * the largest f16, less some for rounding */

/* low <= 0 <= high: the range of the group. Attempt 0 covers it, each further attempt 4 % less.
 * False: the range is empty or too small for an f16 scale. */
static inline bool int4_fit(struct int4_fit *f, float low, float high, int attempt)
{
    const float part = 1.0f - 0.04f * (float)attempt;
    f->stored = f32_to_f16((high - low) * part / INT4_MOST);
    f->scale = f16_to_f32(f->stored);
    if (!(f->scale > 0))
        return false;
    f->inverse = 1.0f / f->scale;
    f->zero = rintf(-low * part * f->inverse);
    f->zero = f->zero > INT4_MOST ? INT4_MOST : f->zero;
    return true;
}

#endif
