/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 256 numbers whose magnitudes are rows of a grid, 8 or 4 at a time:
 *
 *     IQ1_S    f16 d, 32 bytes of indices, 8 u16: 4 times 3 high bits of an index, 3 of the scale
 *              of 32 numbers, the sign of 1/8
 *     IQ1_M    32 bytes of indices, 16 bytes: twice 3 high bits and the sign of 1/8; 4 u16:
 *              4 scales of 16 numbers, 3 bits each, and 4 bits of f16 d
 *     IQ2_XXS  f16 d, 8 times: 4 bytes of indices, u32 of 4 times 7 signs and the scale of
 *              32 numbers
 *     IQ2_XS   f16 d, 32 u16: 9 bits of index, 7 signs; 8 bytes of 2 scales of 16 numbers
 *     IQ2_S    f16 d, 32 bytes of indices, 32 of signs, 8 of 2 high bits, 8 of scales as IQ2_XS
 *     IQ3_XXS  f16 d, 64 bytes of indices, 8 u32 as IQ2_XXS
 *     IQ3_S    f16 d, 64 bytes of indices, 8 of high bits, 32 of signs, 4 of 2 scales of
 *              32 numbers
 *
 * A scale s stands for 2 s + 1. Of 8 signs in 7 bits the last one makes the number of minus signs
 * even. Source: ggml (ggml-common.h, ggml-quants.c). */
#include "common/gguf/rows_internal.h"

#define BELOW_ZERO 8u /* in a code */

static uint32_t load_u32(const unsigned char *p)
{
    return load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}

static int8_t part_of(uint32_t scale)
{
    return (int8_t)(2 * scale + 1);
}

/* Nibble i. */
static unsigned nibble(const unsigned char *p, uint32_t i)
{
    return p[i / 2] >> i % 2 * 4 & 15u;
}

/* 8 numbers of a row of the grid, with their signs. */
static void put_8(uint8_t *q, unsigned row, unsigned signs)
{
    for (uint32_t i = 0; i < 8; i++)
        q[i] = (uint8_t)((row >> 2 * i & 3u) | (signs >> i & 1u) * BELOW_ZERO);
}

static void put_4(uint8_t *q, unsigned row, unsigned signs)
{
    for (uint32_t i = 0; i < 4; i++)
        q[i] = (uint8_t)((row >> 3 * i & 7u) | (signs >> i & 1u) * BELOW_ZERO);
}

static unsigned eight_signs(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* d is that of eighths: values are 8 times those of the grid, plus or minus 1. */
void gguf_iq1_s(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b) / 8;
    for (uint32_t i = 0; i < 32; i++) {
        const unsigned more = load_u16(b + 34 + i / 4 * 2), high = more >> i % 4 * 3 & 7u;
        to->parts[i / 4] = part_of(more >> 12 & 7u);
        put_8(to->q + 8 * (size_t)i, gguf_grid_iq1[b[2 + i] | high << 8], more >> 15 ? 255u : 0);
    }
}

void gguf_iq1_m(const struct gguf_codes *to, const unsigned char *b)
{
    unsigned d = 0;
    for (uint32_t j = 0; j < 16; j++) {
        const unsigned scales = load_u16(b + 48 + j / 4 * 2);
        to->parts[j] = part_of(scales >> j % 4 * 3 & 7u);
        if (j % 4 == 0)
            d |= scales >> 12 << j;
    }
    *to->supers = f16_to_f32((uint16_t)d) / 8;
    for (uint32_t i = 0; i < 32; i++) {
        const unsigned more = nibble(b + 32, i);
        put_8(to->q + 8 * (size_t)i, gguf_grid_iq1[b[i] | (more & 7u) << 8], more >> 3 ? 255u : 0);
    }
}

void gguf_iq2_xxs(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b) / 8;
    for (uint32_t i = 0; i < 32; i++) {
        const unsigned char *of_32 = b + 2 + i / 4 * 8;
        const uint32_t more = load_u32(of_32 + 4);
        to->parts[i / 4] = part_of(more >> 28);
        put_8(to->q + 8 * (size_t)i, gguf_grid_iq2_xxs[of_32[i % 4]],
              eight_signs(more >> i % 4 * 7 & 127u));
    }
}

void gguf_iq2_xs(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b) / 8;
    for (uint32_t i = 0; i < 32; i++) {
        const unsigned both = load_u16(b + 2 + 2 * (size_t)i);
        to->parts[i / 2] = part_of(nibble(b + 66, i / 2));
        put_8(to->q + 8 * (size_t)i, gguf_grid_iq2_xs[both & 511u], eight_signs(both >> 9));
    }
}

void gguf_iq2_s(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b) / 8;
    for (uint32_t i = 0; i < 32; i++) {
        const unsigned high = b[66 + i / 4] >> i % 4 * 2 & 3u;
        to->parts[i / 2] = part_of(nibble(b + 74, i / 2));
        put_8(to->q + 8 * (size_t)i, gguf_grid_iq2_s[b[2 + i] | high << 8], b[34 + i]);
    }
}

void gguf_iq3_xxs(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b) / 4;
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t more = load_u32(b + 66 + i / 8 * 4);
        const unsigned signs = eight_signs(more >> i / 2 % 4 * 7 & 127u);
        to->parts[i / 8] = part_of(more >> 28);
        put_4(to->q + 4 * (size_t)i, gguf_grid_iq3_xxs[b[2 + i]], signs >> i % 2 * 4);
    }
}

void gguf_iq3_s(const struct gguf_codes *to, const unsigned char *b)
{
    *to->supers = load_f16(b);
    for (uint32_t i = 0; i < 64; i++) {
        const unsigned high = b[66 + i / 8] >> i % 8 & 1u;
        to->parts[i / 8] = part_of(nibble(b + 106, i / 8));
        put_4(to->q + 4 * (size_t)i, gguf_grid_iq3_s[b[2 + i] | high << 8], nibble(b + 74, i));
    }
}
