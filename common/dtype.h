/* SPDX-License-Identifier: Apache-2.0 */
/* dtype - element types of tensors, and single conversions. Threads: pure functions. */
#ifndef QUIRE_COMMON_DTYPE_H
#define QUIRE_COMMON_DTYPE_H
#include <stdbool.h>
#include <stdint.h>

enum dtype {
#define DTYPE(name, text, bits) DT_##name,
#include "common/dtype.def"
    DT_COUNT
};

const char *dtype_name(enum dtype t);                /* "BF16" */
uint32_t dtype_bits(enum dtype t);                   /* of one element */
bool dtype_parse(enum dtype *out, const char *name); /* name exactly as in safetensors */

/* IEEE half and bfloat16 as raw bits; rounding to nearest even, NaN stays NaN (quiet), overflow
 * becomes infinity. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
static inline uint16_t f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(v.u >> 16 | 0x40u);
    return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}

/* To DT_F8_E4M3 (the finite one, with OCP's name E4M3) or DT_F8_E5M2, rounded to nearest, ties to
 * even. What is too large becomes NaN of e4m3, which has no infinity, and infinity of e5m2. Source:
 * OCP 8-bit floating point specification (OFP8). */
uint8_t f32_to_f8(float f, enum dtype t);

#endif
