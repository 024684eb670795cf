/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scaled_tiles - many rows of codes_scaled.h: products of values and scales, and tiles of
 * rows that multiply them. Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_SCALED_TILES_H
#define QUIRE_KERNELS_WIDE_CODES_SCALED_TILES_H
#include "kernels/wide/codes_scaled.h"
#ifdef INTS

/* A slice to s->w, and the next one into the cache. */
INLINE void scaled_unpack(const struct codes_block *b, const uint8_t *at,
                          const enum codes_form form)
{
    const int n_pair = codes_line_pairs(form);
    const int32_t zero = codes_zero(b->form);
    const ints zeros = ints_set(zero | zero << 16);
    const size_t scales_at = b->scales_at, slice = SCALED_SLICE / b->form->group * b->group_bytes;
    int16_t(*to)[KERN_PANEL][2] = b->s->w;
    for (uint32_t k = 0; k < SCALED_SLICE; k += b->form->group, at += b->group_bytes) {
        const int8_t *scales = (const int8_t *)at + scales_at;
        for (const uint8_t *line = at; line < at + scales_at; line += CODES_LINE, to += n_pair) {
            for (size_t i = 0; i < CODES_LINE; i += 64)
                __builtin_prefetch(line + slice + i);
            UNROLL
            for (uint32_t o = 0; o < KERN_PANEL; o += INTS) {
                const ints v = codes_load(line + (size_t)o * 4);
                const ints scale = ints_twice(ints_load_i8(scales + o));
                UNROLL
                for (int i = 0; i < n_pair; i++)
                    ints_store(
                        (int32_t *)(void *)to[i][o],
                        ints_mul_16(ints_sub_16(codes_pairs(v, i, NULL, form), zeros), scale));
            }
        }
    }
}

/* Mins of a block to s->w, so that digits of a group's sum of x are multiplied as inputs are. */
INLINE void scaled_unpack_mins(const struct codes_block *b)
{
    const uint32_t n_group = KERN_CODES_X / b->form->group;
    const int8_t *mins = (const int8_t *)b->groups + b->scales_at + KERN_PANEL;
    for (uint32_t g = 0; g < n_group; g++, mins += b->group_bytes)
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS)
            ints_store((int32_t *)(void *)b->s->w[g][o], ints_and_256(ints_load_i8(mins + o)));
}

/* Sums of n_pair pairs of a tile's rows: onto the parts of the first row and on, or to s->products.
 * x: of the first row; w: the strip's. */
INLINE void scaled_dots(const struct codes_block *b, const int rows, const int16_t *x,
                        const int16_t (*w)[2], uint32_t n_pair, float *part, const bool first)
{
    struct codes_int_sums s;
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < INTS_STRIP; j++)
        s.v[r][j] = ints_set(0);
    for (const int16_t *end = x + 2 * (size_t)n_pair; x < end; x += 2, w += KERN_PANEL) {
        ints v[INTS_STRIP];
        UNROLL
        for (int j = 0; j < INTS_STRIP; j++)
            v[j] = codes_load(w[j * INTS]);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const ints two = codes_two(
                (const int16_t *)(const void *)((const char *)x + (size_t)r * sizeof *b->x));
            UNROLL
            for (int j = 0; j < INTS_STRIP; j++)
                s.v[r][j] = pairs_dot(s.v[r][j], v[j], two);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < INTS_STRIP; j++)
        if (part)
            scaled_part(part + r * (int)KERN_PANEL + j * INTS, s.v[r][j], first);
        else
            ints_store(b->s->products[r] + j * INTS, s.v[r][j]);
}

/* A slice from input k on, of `rows` rows. */
INLINE void scaled_tile(const struct codes_block *b, const uint32_t row, const int rows, uint32_t k)
{
    const uint32_t chunk = codes_chunk(b->form);
    for (uint32_t strip = 0; strip < KERN_PANEL; strip += INTS_STRIP * INTS) {
        const int16_t *x = b->x[row].n + k;
        float *part = b->s->part[row] + strip;
        for (uint32_t i = 0; i < SCALED_SLICE; i += chunk)
            if (k + i == 0)
                scaled_dots(b, rows, x, b->s->w[0] + strip, chunk / 2, part, true);
            else
                scaled_dots(b, rows, x + i, b->s->w[i / 2] + strip, chunk / 2, part, false);
    }
}

/* After all slices; mins are in s->w. */
INLINE void scaled_join_tile(const struct codes_block *b, const uint32_t row, const int rows,
                             const bool has_min)
{
    for (uint32_t strip = 0; strip < KERN_PANEL; strip += INTS_STRIP * INTS) {
        if (has_min)
            scaled_dots(b, rows, b->x[row].digits[0], b->s->w[0] + strip,
                        KERN_CODES_X / b->form->group, NULL, false);
        for (uint32_t r = 0; r < (uint32_t)rows; r++)
            UNROLL
        for (uint32_t o = 0; o < INTS_STRIP * INTS; o += INTS)
            scaled_join(b, row + r, strip + o, ints_load(b->s->products[r] + o), has_min);
    }
}

#endif
#endif
