/* SPDX-License-Identifier: Apache-2.0 */
/* int8 - a vector's scale and its stored values, one by one; for the reference kernels.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_REF_INT8_H
#define QUIRE_KERNELS_REF_INT8_H
#include <stdint.h>
#include "kernels/ops/int8.h"

/* The larger of `most` and |x|; NaN once an x was. */
static inline float int8_most(float most, float x)
{
    return isnan(x) || fabsf(x) > most ? fabsf(x) : most;
}

static inline struct int8_scale int8_scale_of(const float *x, uint32_t n)
{
    float most = 0;
    for (uint32_t d = 0; d < n; d++)
        most = int8_most(most, x[d]);
    return int8_scale(most);
}

/* NaN is stored as 0. */
static inline int8_t int8_of(float x, float inverse)
{
    float y = x * inverse;
    return isnan(y) ? 0 : (int8_t)rintf(y);
}

#endif
