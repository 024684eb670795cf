/* SPDX-License-Identifier: Apache-2.0 */
/* int4_fit - the scale and the zero of a group of weights; formula: ref/pack_int4.c. Private to
 * kernels/, the same lines for every variant. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_INT4_FIT_H
#define QUIRE_KERNELS_TILING_INT4_FIT_H
#include <math.h>
#include "kernels/ops/int4_layout.h"

struct int4_fit {
    float scale, inverse; /* inverse: of scale as it is stored */
    float zero;
    uint16_t stored; /* scale as f16 */
};

#define INT4_RANGE_MAX 900000.0f /* 15 * the largest f16, less some for rounding */

/* low <= 0 <= high: the range of the group. Attempt 0 covers it, each next one 4 % less. False:
 * the range is nothing, or so little that no f16 scale stands for it. */
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
