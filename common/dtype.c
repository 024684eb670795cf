/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dtype.h"
#include <string.h>

static const struct {
    const char *name;
    uint32_t bits;
} types[DT_COUNT] = {
#define DTYPE(name, text, bits) {text, bits},
#include "common/dtype.def"
};

const char *dtype_name(enum dtype t)
{
    return t < DT_COUNT ? types[t].name : "?";
}

uint32_t dtype_bits(enum dtype t)
{
    return t < DT_COUNT ? types[t].bits : 0;
}

bool dtype_parse(enum dtype *out, const char *name)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    union {
        uint32_t u;
        float f;
    } v;
    if (exponent == 0x1f)
        v.u = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    else if (exponent)
        v.u = sign | (exponent + 112) << 23 | mantissa << 13;
    else { /* zero or subnormal: mantissa * 2^-24 is exact in f32 */
        v.f = (float)mantissa * 0x1p-24f;
        v.u |= sign;
    }
    return v.f;
}

uint16_t f32_to_f16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    uint32_t sign = v.u >> 16 & 0x8000u;
    uint32_t magnitude = v.u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude <
        0x38800000u) { /* below 2^-14: adding 0.5 aligns the mantissa to 2^-24 and rounds to even */
        v.u = magnitude;
        v.f += 0.5f;
        return (uint16_t)(sign | (v.u - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}
