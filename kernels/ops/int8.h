/* SPDX-License-Identifier: Apache-2.0 */
/* int8 - conversion of a vector of floats (a token's K or V, an activation row, an output's
 * weights) to int8 with one scale. Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_INT8_H
#define QUIRE_KERNELS_OPS_INT8_H
#include <math.h>

#define INT8_MOST  127.0f
/* Vectors whose largest magnitude is below this are stored as zeros: 127 / magnitude must be
 * finite, and no scale may be subnormal. */
#define INT8_LEAST 0x1p-100f

struct int8_scale {
    float scale;   /* x is about scale * stored */
    float inverse; /* stored = x * inverse, rounded to the nearest integer, ties to even */
};

/* most: the largest |x| of the vector; NaN or infinite when one x is. Then the scale is NaN, which
 * propagates to the logits, where sampling reports it; the stored values are 0. */
static inline struct int8_scale int8_scale(float most)
{
    if (!(most < INFINITY))
        return (struct int8_scale){NAN, 0};
    if (most < INT8_LEAST)
        return (struct int8_scale){0, 0};
    return (struct int8_scale){most / INT8_MOST, INT8_MOST / most};
}

#endif
