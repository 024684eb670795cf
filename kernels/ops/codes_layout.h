/* SPDX-License-Identifier: Apache-2.0 */
/* codes_layout - offsets within a packed matrix of codes (picture: ops_codes.h), and what codes
 * stand for. Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_CODES_LAYOUT_H
#define QUIRE_KERNELS_OPS_CODES_LAYOUT_H
#include <stdbool.h>
#include <string.h>
#include "kernels/ops/ops_codes.h"

/* Sources: ggml (IQ), OCP Microscaling Formats 1.0 (e2m1). */
static const int8_t codes_ints[KERN_CODES_INT_END][16] = {
    [KERN_CODES_HALVES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    [KERN_CODES_SIGNED] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    [KERN_CODES_NL] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [KERN_CODES_E2M1] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    [KERN_CODES_IQ1] = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7},
    [KERN_CODES_IQ2] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43},
    [KERN_CODES_IQ3_XXS] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62},
    [KERN_CODES_IQ3_S] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15},
};
/* Source: bitsandbytes' quant_map of both types. */
static const float codes_floats[KERN_CODES_END - KERN_CODES_INT_END][16] = {
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
    {0.0f, 0.005208333333f, 0.66666667f, 1.0f, 0.33333333f, 0.5f, 0.16666667f, 0.25f, 0.0f,
     -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f},
};

/* Codes of 8 bits. By_ints they are stored as value + zero. */
static inline bool codes_is_bytes(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_BYTES || c->kind == KERN_CODES_SIX;
}
#define CODES_BYTES_ZERO 128
#define CODES_SIX_ZERO   32
static inline uint8_t codes_bytes_zero(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_SIX ? CODES_SIX_ZERO : CODES_BYTES_ZERO;
}

/* Products of scaled integers (ops_codes.h), and the inputs of a chunk: the sum of as many products
 * of an input, a value and a scale is an int32. */
static inline bool codes_is_scaled(const struct packed_codes *c)
{
    return c->by_ints && c->scales == KERN_SCALES_BY_256 && c->group <= 32 &&
           (c->kind == KERN_CODES_HALVES || c->kind == KERN_CODES_SIGNED ||
            c->kind == KERN_CODES_SIX);
}
static inline uint32_t codes_chunk(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_SIX ? 32 : 64;
}

static inline uint32_t codes_block(const struct packed_codes *c) /* inputs that lie together */
{
    return c->scales == KERN_SCALES_BY_256 ? KERN_CODES_SUPER : c->group;
}

/* Of the floats before a block. */
static inline size_t codes_supers_bytes(const struct packed_codes *c)
{
    const size_t one = KERN_PANEL * sizeof(float);
    return c->scales != KERN_SCALES_BY_256 ? 0 : c->has_min ? 2 * one : one;
}

/* From the start of a group to its scales, and from them to its mins. */
static inline size_t codes_scales_at(const struct packed_codes *c)
{
    return (size_t)c->group * KERN_PANEL / (codes_is_bytes(c) ? 1 : 2);
}
static inline size_t codes_mins_at(const struct packed_codes *c)
{
    static const uint8_t element[] = {
        [KERN_SCALES_F32] = 4,
        [KERN_SCALES_F16] = 2,
        [KERN_SCALES_BY_256] = 1,
    };
    return (size_t)element[c->scales] * KERN_PANEL;
}

static inline size_t codes_group_bytes(const struct packed_codes *c)
{
    return codes_scales_at(c) + codes_mins_at(c) * (c->has_min ? 2 : 1);
}

static inline size_t codes_block_bytes(const struct packed_codes *c)
{
    return codes_supers_bytes(c) + codes_block(c) / c->group * codes_group_bytes(c);
}

static inline size_t codes_panel_bytes(const struct packed_codes *c, uint32_t n_in)
{
    return n_in / codes_block(c) * codes_block_bytes(c);
}

/* From the start of a panel to the block of group g, and from it to the group. */
static inline size_t codes_block_at(const struct packed_codes *c, uint32_t g)
{
    return (size_t)g * c->group / codes_block(c) * codes_block_bytes(c);
}
static inline size_t codes_group_at(const struct packed_codes *c, uint32_t g)
{
    return codes_supers_bytes(c) + g % (codes_block(c) / c->group) * codes_group_bytes(c);
}

/* Code k of output `lane` of a group's codes. */
static inline uint8_t codes_get(const uint8_t *codes, const struct packed_codes *c, uint32_t lane,
                                uint32_t k)
{
    const bool bytes = codes_is_bytes(c);
    const uint32_t in_line = bytes ? 4 : 8, pair = k % in_line / 2, odd = k % 2;
    const uint8_t *line = codes + (k / in_line * KERN_PANEL + lane) * 4 + 2 * odd;
    if (!c->by_ints)
        return bytes ? codes[k * KERN_PANEL + lane]
                     : codes[k / 2 * KERN_PANEL + lane] >> 4 * odd & 15;
    return (uint8_t)(bytes ? line[pair] - codes_bytes_zero(c)
                           : line[pair / 2] >> pair % 2 * 4 & 15);
}

/* The codes of a group of output `lane`: products of f32. */
static inline void codes_put_plain(uint8_t *codes, const struct packed_codes *c, uint32_t lane,
                                   const uint8_t *q)
{
    for (uint32_t k = 0; k < c->group; k++)
        if (codes_is_bytes(c))
            codes[k * KERN_PANEL + lane] = q[k];
        else if (k % 2 == 0)
            codes[k / 2 * KERN_PANEL + lane] = (uint8_t)((q[k] & 15) | q[k + 1] << 4);
}

/* Products of integers. */
static inline void codes_put_lines(uint8_t *codes, const struct packed_codes *c, uint32_t lane,
                                   const uint8_t *q)
{
    const bool bytes = codes_is_bytes(c);
    const uint32_t in_line = bytes ? 4 : 8;
    for (uint32_t k = 0; k < c->group; k += in_line, q += in_line) {
        uint8_t *four = codes + (k / in_line * KERN_PANEL + lane) * 4;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t first = bytes ? i % 2 * 2 + i / 2 : i % 2 * 4 + i / 2;
            four[i] = (uint8_t)(bytes ? q[first] + codes_bytes_zero(c)
                                      : (q[first] & 15) | q[first + 2] << 4);
        }
    }
}

static inline float codes_value(enum kern_codes kind, uint8_t code)
{
    return kind == KERN_CODES_BYTES || kind == KERN_CODES_SIX ? (float)(int8_t)code
           : kind >= KERN_CODES_INT_END ? codes_floats[kind - KERN_CODES_INT_END][code & 15]
                                        : (float)codes_ints[kind][code & 15];
}

/* Number `lane` of an array of scales or mins. */
static inline void codes_put_scale(uint8_t *at, const struct packed_codes *c, uint32_t lane,
                                   float scale, int8_t part)
{
    const uint16_t half = f32_to_f16(scale);
    if (c->scales == KERN_SCALES_F32)
        memcpy(at + lane * sizeof scale, &scale, sizeof scale);
    else if (c->scales == KERN_SCALES_F16)
        memcpy(at + lane * sizeof half, &half, sizeof half);
    else
        at[lane] = (uint8_t)part;
}

/* Group g of output `lane`. */
static inline void codes_put(uint8_t *panel, const struct packed_codes *c, uint32_t lane,
                             uint32_t g, const struct codes_output *from)
{
    uint8_t *block = panel + codes_block_at(c, g), *at = block + codes_group_at(c, g);
    uint8_t *scales = at + codes_scales_at(c);
    const uint8_t *q = from->q + (size_t)g * c->group;
    const bool by_256 = c->scales == KERN_SCALES_BY_256;
    const uint32_t super = g * c->group / KERN_CODES_SUPER;
    if (c->by_ints)
        codes_put_lines(at, c, lane, q);
    else
        codes_put_plain(at, c, lane, q);
    codes_put_scale(scales, c, lane, by_256 ? 0 : from->scales[g], by_256 ? from->parts[g] : 0);
    if (c->has_min)
        codes_put_scale(scales + codes_mins_at(c), c, lane, by_256 ? 0 : from->mins[g],
                        by_256 ? from->part_mins[g] : 0);
    if (by_256)
        memcpy(block + lane * sizeof(float), from->supers + super, sizeof(float));
    if (by_256 && c->has_min)
        memcpy(block + (KERN_PANEL + lane) * sizeof(float), from->super_mins + super,
               sizeof(float));
}

#endif
