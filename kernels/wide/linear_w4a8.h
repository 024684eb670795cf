/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 on registers of int32 sums; formula and order: ops_int4.h. The including file defines
 * the names of int4_tile.h and INTS_STRIP (as linear_int8.h).
 *
 * For few rows, weights are unpacked in registers, directly from memory: one tile has all rows, and
 * with more than LINEAR_TILE rows half as many outputs. For more rows, a slice of groups is
 * unpacked once, into a cache, for all tiles. A tile iterates over the groups of a slice, and adds
 * each group's sums from their registers. AVX-512 has a micro-kernel of its own (int4_strip.h).
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_W4A8_H
#define QUIRE_KERNELS_WIDE_LINEAR_W4A8_H
#include "kernels/wide/int4_tile.h"
#ifdef INTS

static __attribute__((noinline)) void int4_epilogue_rows(const struct int4_part *p, uint32_t row,
                                                         uint32_t n)
{
    for (uint32_t r = row; r < row + n; r++)
        int4_epilogue(p, r);
}

/* Four inputs of a strip of unpacked bytes are a step. The steps of all tiles together prefetch the
 * next slice; a tile that unpacks prefetches some bytes ahead with each line. */
INLINE struct int4_next int4_next(const struct int4_part *p, uint32_t row, struct int4_tile t,
                                  const bool packed)
{
    if (packed)
        return (struct int4_next){(const char *)p->w + int4_ahead(t.rows, 4096), LINE};
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const uint32_t i_tile = (row * n_tile + p->n_row - 1) / p->n_row;
    const size_t n_step =
        (size_t)p->n_group * p->a->w.group / 4 * KERN_PANEL / (size_t)(t.n_vec * INTS);
    const size_t step = p->n_next * int4_group_bytes(p->a->w.group) / (n_step * n_tile) + 1;
    return (struct int4_next){(const char *)p->next + i_tile * n_step * step, step};
}

INLINE void int4_tile(const struct int4_part *p, uint32_t row, const int rows, const bool packed)
{
    const uint32_t group = p->a->w.group, n_row = p->n_row;
    float(*acc)[KERN_PANEL] = p->s->acc + row;
    struct int4_tile t = {.rows = rows, .n_vec = INTS_STRIP};
    struct int4_one g = {
        .packed = p->w,
        .bytes = p->s->bytes,
        .x_sum = p->x_sum + row,
        .x = int4_rows(p, row, rows),
        .n_k = group,
    };
    if (rows == 1)
        t.n_vec = (int)KERN_PANEL / INTS; /* so that memory is read in order */
    else if (rows > (int)LINEAR_TILE)
        t.n_vec = INTS_STRIP / 2;
    struct int4_next next = int4_next(p, row, t, packed);
    if (int4_last(p)) {
        const struct epilogue f = EPILOGUE_OF(p->a);
        const struct range of = {p->row + row, p->row + row + (uint32_t)rows};
        epilogue_prefetch(&f, of, p->o, int4_outputs(p));
    }
    if (p->k == 0)
        memset(acc, 0, (size_t)rows * sizeof *acc);
    for (uint32_t i = 0, n = p->n_group; i < n; i++) {
        int4_group_tile(acc, &g, t, &next, packed);
        g.packed += int4_group_bytes(group);
        g.bytes += (size_t)group * KERN_PANEL;
        g.x_sum += n_row;
        int4_on(&g.x, (int)group);
        if (packed)
            next.p += int4_group_bytes(group) - int4_scales_at(group);
        load_again();
    }
    if (int4_last(p))
        int4_epilogue_rows(p, row, (uint32_t)rows);
}

#define PACKED(rows)                                                        \
    static void int4_packed_##rows(const struct int4_part *p, uint32_t row) \
    {                                                                       \
        int4_tile(p, row, rows, true);                                      \
    }
#define BYTES(rows)                                                        \
    static void int4_bytes_##rows(const struct int4_part *p, uint32_t row) \
    {                                                                      \
        int4_tile(p, row, rows, false);                                    \
    }
PACKED(1)
PACKED(2)
PACKED(3)
PACKED(4)
PACKED(5)
PACKED(6)
PACKED(7)
PACKED(8)
PACKED(9)
PACKED(10)
PACKED(11)
PACKED(12)
BYTES(4)
BYTES(5)
BYTES(6)
#undef PACKED
#undef BYTES

typedef void int4_tile_fn(const struct int4_part *p, uint32_t row);
static int4_tile_fn *const packed_tiles[INT4_FEW + 1] = {
    NULL,           int4_packed_1,  int4_packed_2, int4_packed_3, int4_packed_4,
    int4_packed_5,  int4_packed_6,  int4_packed_7, int4_packed_8, int4_packed_9,
    int4_packed_10, int4_packed_11, int4_packed_12};
/* tiles of equal size: of more than INT4_FEW rows none has fewer than 4 */
static int4_tile_fn *const bytes_tiles[LINEAR_TILE + 1] = {
    NULL, NULL, NULL, NULL, int4_bytes_4, int4_bytes_5, int4_bytes_6};

static void int4_ints(const struct int4_part *p)
{
    if (p->n_row <= INT4_FEW) {
        packed_tiles[p->n_row](p, 0);
        return;
    }
    int4_unpack(p);
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        bytes_tiles[end - begin](p, begin);
    }
}

INLINE void linear_w4a8_ints(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    const struct int4_kernel by = {
        .fn = int4_ints,
        .few = INT4_FEW,
        .slice_k = atomic_load_explicit(&kern_slice_bytes, memory_order_relaxed) / KERN_PANEL,
    };
    int4_tile_loop(a, x, &by);
}

#endif
#endif
