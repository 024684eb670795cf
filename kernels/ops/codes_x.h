/* SPDX-License-Identifier: Apache-2.0 */
/* codes_x - rounding of inputs to integers for products by_ints (formula: ops_codes.h).
 * Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_CODES_X_H
#define QUIRE_KERNELS_OPS_CODES_X_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define CODES_X_BITS 13        /* below the largest bit: the unit is 2^-13 of it */
#define CODES_LEAST  0x1p-100f /* largest magnitude below which all inputs are 0 */

struct codes_unit {
    float unit, inverse; /* powers of two, 1 / unit; or 0, 0; or NaN, 0 */
};

/* most: the largest |x|; NaN or infinite when one x is. */
static inline struct codes_unit codes_unit(float most)
{
    uint32_t bits;
    struct codes_unit u;
    if (!(most < INFINITY))
        return (struct codes_unit){NAN, 0};
    if (most < CODES_LEAST)
        return (struct codes_unit){0, 0};
    memcpy(&bits, &most, sizeof bits);
    const uint32_t exponent = bits >> 23; /* 127 + e */
    const uint32_t unit = (exponent - CODES_X_BITS) << 23, inverse = (254 + CODES_X_BITS - exponent)
                                                                     << 23;
    memcpy(&u.unit, &unit, sizeof unit);
    memcpy(&u.inverse, &inverse, sizeof inverse);
    return u;
}

#define CODES_X_MOST 16383.0f /* 2^14 - 1: sums of a chunk stay below 2^31 (codes_layout.h) */

/* NaN: 0. */
static inline int32_t codes_x(float x, float inverse)
{
    const float n = rintf(x * inverse);
    return isnan(n) ? 0 : (int32_t)fmaxf(fminf(n, CODES_X_MOST), -CODES_X_MOST);
}

#endif
