/* SPDX-License-Identifier: Apache-2.0 */
/* e4m3 - 8-bit floats of the cache and of weights: sign, 4 bits of exponent with bias 7, 3 of
 * mantissa, subnormals, no infinity, 0x7f is NaN. Source: arXiv:2209.05433. Threads: pure
 * functions. */
#ifndef QUIRE_KERNELS_OPS_E4M3_H
#define QUIRE_KERNELS_OPS_E4M3_H
#include <stdint.h>
#include <string.h>

#define E4M3_MOST 448.0f

/* The bits are shifted to the exponent and mantissa of f32; a factor of 2^120 corrects the bias, of
 * subnormals too. */
static inline float e4m3_to_f32(uint8_t b)
{
    uint32_t bits = (uint32_t)(b & 0x7f) << 20;
    float f;
    memcpy(&f, &bits, 4);
    f *= 0x1p120f;
    memcpy(&bits, &f, 4);
    bits = (b & 0x7f) == 0x7f ? 0x7fc00000u : bits;
    bits |= (uint32_t)(b & 0x80) << 24;
    memcpy(&f, &bits, 4);
    return f;
}

/* To the nearest, ties to even; magnitudes above 448 become 448; a NaN remains NaN. */
static inline uint8_t f32_to_e4m3(float f)
{
    uint32_t bits, sign;
    memcpy(&bits, &f, 4);
    sign = bits >> 24 & 0x80;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    if (bits >= 0x43e00000) /* 448 */
        return (uint8_t)(sign | 0x7e);
    if (bits < 0x3c800000) { /* below 2^-6: multiples of 2^-9, by adding what leaves those */
        float size;
        memcpy(&size, &bits, 4);
        size += 0x1p14f;
        memcpy(&bits, &size, 4);
        return (uint8_t)(sign | (bits - 0x46800000));
    }
    bits += 0x7ffff + (bits >> 20 & 1);
    return (uint8_t)(sign | (bits - 0x3c000000) >> 20);
}

#endif
