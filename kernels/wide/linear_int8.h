/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int8 on registers of int32 sums; formula: ref/linear_int8.c; loops around the tiles:
 * linear_tile_loop.h. The including file defines the register type and its dot product:
 *
 *     ints, INTS (int32 in one), INTS_STRIP (of a tile's strip of outputs; INTS_STRIP x LINEAR_TILE
 *     sums and some more must fit the registers), ints_set, ints_load, ints_store,
 *     ints_dot(sum, w, x): sum + 4 products in each int32, w four stored weights, x four s8, and
 *     INTS_WEIGHT_OFFSET: the offset of the weights in ints_dot, 128 or 0
 *
 * A lane is one output. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_INT8_H
#define QUIRE_KERNELS_WIDE_LINEAR_INT8_H
#include <string.h>
#include "kernels/tiling/int8_tile_loop.h"
#include "kernels/tiling/unroll.h"
#ifdef INTS

INLINE ints int8_x(const char *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return ints_set(four);
}

/* rows x n_vec registers of sums over the outputs from `strip` on. A strip prefetches its part of
 * the next slice. */
INLINE void int8_strip(const struct linear_tile *t, const int rows, const int n_vec, uint32_t strip,
                       const int is_far)
{
    ints sum[LINEAR_TILE][KERN_PANEL / INTS];
    int32_t *at = (int32_t *)(void *)t->sum + strip;
    size_t row[LINEAR_TILE];
    UNROLL
    for (int r = 0; r < rows; r++)
        row[r] = linear_row(t->x_bytes, r);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        sum[r][j] = t->first ? ints_set(0) : ints_load(at + r * (int)KERN_PANEL + j * INTS);
    const char *x = t->x, *w = (const char *)t->w + (size_t)strip * 4;
    const int n_strip = (int)KERN_PANEL / (n_vec * INTS);
    const size_t step = (t->next.step + (size_t)n_strip - 1) / (size_t)n_strip;
    const char *next = t->next.p + strip / (uint32_t)(n_vec * INTS) * (t->n_k / 4) * step;
    for (const char *end = x + t->n_k; x < end; x += 4, w += 4 * KERN_PANEL) {
        ints v[KERN_PANEL / INTS];
        if (is_far)
            linear_prefetch_far(next, step, 4 / n_strip);
        else
            linear_prefetch(next, step, 4 / n_strip);
        next += step;
        UNROLL
        for (int j = 0; j < n_vec; j++)
            v[j] = ints_load((const int32_t *)(const void *)w + j * INTS);
        UNROLL
        for (int r = 0; r < rows; r++) {
            ints four = int8_x(x + row[r]);
            UNROLL
            for (int j = 0; j < n_vec; j++)
                sum[r][j] = ints_dot(sum[r][j], v[j], four);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        ints_store(at + r * (int)KERN_PANEL + j * INTS, sum[r][j]);
}

/* One row takes the whole panel at once, so that decoding reads memory in order. */
INLINE void int8_tile(const struct linear_tile *t, const int rows)
{
    const struct linear_tile local = *t;
    const int n_vec = rows == 1 ? (int)KERN_PANEL / INTS : INTS_STRIP;
    for (uint32_t strip = 0; strip < KERN_PANEL; strip += (uint32_t)(n_vec * INTS)) {
        if (LINEAR_ONE_PASS > 1 && local.is_far)
            int8_strip(&local, rows, n_vec, strip, 1);
        else
            int8_strip(&local, rows, n_vec, strip, 0);
    }
}

#define TILE(rows)                                             \
    static void quant_tile_##rows(const struct linear_tile *t) \
    {                                                          \
        int8_tile(t, rows);                                    \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#undef TILE
static linear_tile_fn *const ints_tiles[LINEAR_TILE] = {quant_tile_1, quant_tile_2, quant_tile_3,
                                                        quant_tile_4, quant_tile_5, quant_tile_6};

INLINE void linear_int8_ints(const struct linear_int8_args *a, const struct kern_exec *x)
{
    static const struct int8_tiles tiles = {ints_tiles, INTS_WEIGHT_OFFSET};
    int8_tile_loop(a, x, &tiles);
}

#endif
#endif
