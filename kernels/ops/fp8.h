/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 - conversion of a vector of floats (an activation row, an output's weights) to e4m3 with one
 * scale: the vector's own, or one that is given. Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_FP8_H
#define QUIRE_KERNELS_OPS_FP8_H
#include <math.h>

#define FP8_MOST  448.0f
/* Vectors whose largest magnitude is below this are stored as zeros: 448 / magnitude must be
 * finite, and no scale may be subnormal. */
#define FP8_LEAST 0x1p-100f

struct fp8_scale {
    float scale;   /* x is about scale * stored */
    float inverse; /* stored = e4m3(x * inverse) */
};

/* most: the largest |x| of the vector; NaN or infinite when one x is. Then the scale is NaN, which
 * propagates to the logits, where sampling reports it; NaNs are stored as 0. fixed: above 0 the
 * scale of a vector that is finite, with an inverse that is; larger magnitudes than 448 fixed are
 * stored as 448. 0: the vector's own, most / 448. */
static inline struct fp8_scale fp8_scale(float most, float fixed)
{
    if (!(most < INFINITY))
        return (struct fp8_scale){NAN, 0};
    if (fixed > 0)
        return (struct fp8_scale){fixed, 1 / fixed};
    if (most < FP8_LEAST)
        return (struct fp8_scale){0, 0};
    return (struct fp8_scale){most / FP8_MOST, FP8_MOST / most};
}

#endif
