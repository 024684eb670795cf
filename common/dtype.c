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

uint8_t f32_to_f8(float f, enum dtype t)
{
    const bool is_e4m3 = t == DT_F8_E4M3;
    const uint32_t n_mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    const uint32_t n_drop = 23 - n_mantissa, too_large = is_e4m3 ? 0x7f : 0x7c;
    union {
        float f;
        uint32_t u;
    } v = {f}, step;
    const uint32_t sign = v.u >> 24 & 0x80u, magnitude = v.u & 0x7fffffffu;
    uint32_t code;
    if (magnitude > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (magnitude < (128 - bias) << 23) { /* subnormal: the sum's last bit is the smallest step */
        step.u = (127 + 24 - bias - n_mantissa) << 23;
        v.u = magnitude;
        v.f += step.f;
        code = v.u - step.u;
    } else {
        const uint32_t half = (1u << (n_drop - 1)) - 1;
        code = ((magnitude + half + (magnitude >> n_drop & 1u)) >> n_drop) -
               ((127 - bias) << n_mantissa);
    }
    return (uint8_t)(sign | (code < too_large ? code : too_large));
}
