/* SPDX-License-Identifier: Apache-2.0 */
/* e4m3 by its definition: sign, 4 bits of exponent with bias 7, 3 of mantissa, subnormals, no
 * infinity, 0x7f is NaN. Source: arXiv:2209.05433. */
#include <math.h>
#include <stdint.h>

float emu_e4m3_to_f32(uint8_t b);
uint8_t emu_f32_to_e4m3(float f);

float emu_e4m3_to_f32(uint8_t b)
{
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    float f = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((b & 0x7f) == 0x7f)
        f = NAN;
    return b & 0x80 ? -f : f;
}

/* The nearest of the 127 magnitudes, of two equally near the even one; beyond 448 is 448. */
uint8_t emu_f32_to_e4m3(float f)
{
    const uint8_t sign = signbit(f) ? 0x80 : 0;
    const float size = fabsf(f);
    uint8_t low = 0;
    if (isnan(f))
        return 0x7f;
    if (size >= 448)
        return sign | 0x7e;
    while (emu_e4m3_to_f32((uint8_t)(low + 1)) <= size)
        low++;
    const float down = size - emu_e4m3_to_f32(low), up = emu_e4m3_to_f32((uint8_t)(low + 1)) - size;
    return sign | (uint8_t)(low + (up < down || (up == down && low & 1)));
}
