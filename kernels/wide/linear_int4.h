/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int4 on registers of int32 sums; formula and order: ops_int4.h. The file that includes
 * this names what wide/linear_quant.h asks for but INTS_ON_TOP, where ints_dot takes w as it is
 * stored (0 … 15), and
 *
 *     ints_low, ints_high: the low and the high halves of bytes; ints_add
 *
 * Few rows unpack in registers, straight from memory. More unpack each group once, into 8 KiB that
 * stay in L1, for all their tiles. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_INT4_H
#define QUIRE_KERNELS_WIDE_LINEAR_INT4_H
#include <string.h>
#include "kernels/linear_walk.h"
#include "kernels/wide/int4.h"
#ifdef INTS

#define LINE     (4 * KERN_PANEL) /* bytes */
#define INT4_FEW 2                /* tiles of rows that unpack for themselves */

INLINE ints int4_load(const uint8_t *p)
{
    return ints_load((const int32_t *)(const void *)p);
}

/* A group into p->s->bytes; the next one is asked for meanwhile. */
INLINE void int4_unpack(const struct int4_part *p)
{
    const size_t ahead = int4_group_bytes(p->a->w.group);
    for (uint32_t line = 0; line < p->a->w.group / 8; line++)
        for (uint32_t i = 0; i < LINE; i += INTS * 4) {
            const uint8_t *w = p->w + (size_t)line * LINE + i;
            uint8_t *to = p->s->bytes + 2 * (size_t)line * LINE + i;
            ints both = int4_load(w);
            if (i % 64 == 0)
                __builtin_prefetch(w + ahead);
            ints_store((int32_t *)(void *)to, ints_low(both));
            ints_store((int32_t *)(void *)(to + LINE), ints_high(both));
        }
}

INLINE ints int4_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return ints_set(four);
}

/* Rows row … of the block, outputs from `strip` on, from a group as it is stored. One row has two
 * chains of sums for each output, since it waits for them. */
INLINE void strip_packed(const struct int4_part *p, uint32_t row, const int rows, const int n_vec,
                         uint32_t strip)
{
    ints sum[LINEAR_TILE][KERN_PANEL / INTS], more[KERN_PANEL / INTS];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        sum[r][j] = more[j] = ints_set(0);
    for (uint32_t k = 0; k < p->a->w.group; k += 8) {
        const uint8_t *w = p->w + (size_t)(k / 8) * LINE + (size_t)strip * 4;
        for (uint32_t i = 0; strip == 0 && i < LINE; i += 64)
            __builtin_prefetch(w + LINEAR_AHEAD + i);
        UNROLL
        for (int j = 0; j < n_vec; j++) {
            ints both = int4_load(w + (size_t)j * INTS * 4);
            ints low = ints_low(both), high = ints_high(both);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const int8_t *x = int4_x(p, row + (uint32_t)r) + k;
                sum[r][j] = ints_dot(sum[r][j], low, int4_four(x));
                ints *to = rows == 1 ? &more[j] : &sum[r][j];
                *to = ints_dot(*to, high, int4_four(x + 4));
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        ints_store(&p->s->sum[r][strip] + j * INTS,
                   rows == 1 ? ints_add(sum[r][j], more[j]) : sum[r][j]);
}

/* The same from p->s->bytes. */
INLINE void strip_bytes(const struct int4_part *p, uint32_t row, const int rows, const int n_vec,
                        uint32_t strip)
{
    ints sum[LINEAR_TILE][KERN_PANEL / INTS];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        sum[r][j] = ints_set(0);
    for (uint32_t k = 0; k < p->a->w.group; k += 4) {
        const uint8_t *w = p->s->bytes + (size_t)(k / 4) * LINE + (size_t)strip * 4;
        ints v[KERN_PANEL / INTS];
        UNROLL
        for (int j = 0; j < n_vec; j++)
            v[j] = int4_load(w + (size_t)j * INTS * 4);
        UNROLL
        for (int r = 0; r < rows; r++) {
            ints x = int4_four(int4_x(p, row + (uint32_t)r) + k);
            UNROLL
            for (int j = 0; j < n_vec; j++)
                sum[r][j] = ints_dot(sum[r][j], v[j], x);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        ints_store(&p->s->sum[r][strip] + j * INTS, sum[r][j]);
}

INLINE void int4_tile(const struct int4_part *p, uint32_t row, const int rows, const bool packed)
{
    const struct int4_part local = *p;
    const int n_vec = rows == 1 ? (int)KERN_PANEL / INTS : INTS_STRIP;
    for (uint32_t strip = 0; strip < KERN_PANEL; strip += (uint32_t)(n_vec * INTS))
        if (packed)
            strip_packed(&local, row, rows, n_vec, strip);
        else
            strip_bytes(&local, row, rows, n_vec, strip);
    for (uint32_t r = 0; r < (uint32_t)rows; r++)
        int4_add(&local, row + r, local.s->sum[r], 0, KERN_PANEL / 16);
}

#define TILE(rows)                                                          \
    static void int4_packed_##rows(const struct int4_part *p, uint32_t row) \
    {                                                                       \
        int4_tile(p, row, rows, true);                                      \
    }                                                                       \
    static void int4_bytes_##rows(const struct int4_part *p, uint32_t row)  \
    {                                                                       \
        int4_tile(p, row, rows, false);                                     \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#undef TILE

typedef void int4_tile_fn(const struct int4_part *p, uint32_t row);
static int4_tile_fn *const packed_tiles[LINEAR_TILE] = {
    int4_packed_1, int4_packed_2, int4_packed_3, int4_packed_4, int4_packed_5, int4_packed_6};
static int4_tile_fn *const bytes_tiles[LINEAR_TILE] = {int4_bytes_1, int4_bytes_2, int4_bytes_3,
                                                       int4_bytes_4, int4_bytes_5, int4_bytes_6};

static void int4_ints(const struct int4_part *p)
{
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const bool few = n_tile <= INT4_FEW;
    if (!few)
        int4_unpack(p);
    for (uint32_t i = 0; i < n_tile; i++) { /* of equal size, so that none is left with one row */
        uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        (few ? packed_tiles : bytes_tiles)[end - begin - 1](p, begin);
    }
}

INLINE void linear_int4_ints(const struct linear_int4_args *a, const struct kern_exec *x)
{
    int4_walk(a, x, int4_ints);
}

#undef LINE
#undef INT4_FEW
#endif
#endif
