/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 on registers of int32 sums; formula and order: ops_int4.h. The including file defines
 * the names of int4_group.h, INTS_STRIP (as linear_int8.h) and ints_dot(sum, w, x): sum + 4
 * products in each int32, w four weights as stored, 0 … 15, x four s8.
 *
 * For few rows, weights are unpacked in registers, directly from memory: one tile has all rows, and
 * with more than LINEAR_TILE rows half as many outputs. For more rows, each group is unpacked once
 * into 8 KiB, which stay in L1, for all tiles. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_W4A8_H
#define QUIRE_KERNELS_WIDE_LINEAR_W4A8_H
#include "kernels/reading.h"
#include "kernels/wide/int4_group.h"
#ifdef INTS

struct int4_sums {
    ints v[INT4_FEW][KERN_PANEL / INTS];
};

/* Four neighbours along K, k and on, of the strip's outputs for all rows of the tile. */
INLINE void int4_dot(struct int4_sums *s, struct int4_tile t, const ints *w,
                     const struct int4_rows *x, int k)
{
    UNROLL
    for (int r = 0; r < t.rows; r++) {
        const int8_t *from = r < (int)LINEAR_TILE ? x->x : x->more;
        const ints four = int4_four(from + x->at[r % (int)LINEAR_TILE] + k);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s->v[r][j] = ints_dot(s->v[r][j], w[j], four);
    }
}

/* From the group as it is stored. One row uses two chains of sums per output, to hide their
 * latency. */
INLINE void sums_packed(struct int4_sums *s, const struct int4_part *p, struct int4_tile t,
                        struct int4_rows x)
{
    const size_t ahead = kern_ahead(KERN_PRODUCT_INT4);
    struct int4_sums more;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        more.v[0][j] = ints_set(0);
    for (uint32_t k = 0; k < p->a->w.group; k += 8) {
        const uint8_t *w = p->w + (size_t)(k / 8) * LINE + (size_t)t.strip * 4;
        ints v[KERN_PANEL / INTS];
        for (uint32_t i = 0; t.strip == 0 && i < LINE; i += 64)
            __builtin_prefetch(w + ahead + i);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_low(int4_load(w + (size_t)j * INTS * 4));
        int4_dot(s, t, v, &x, 0);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_high(int4_load(w + (size_t)j * INTS * 4));
        int4_dot(t.rows == 1 ? &more : s, t, v, &x, 4);
        int4_on(&x, 8);
    }
    if (t.rows > 1)
        return;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        s->v[0][j] = ints_add(s->v[0][j], more.v[0][j]);
}

/* From p->s->bytes; prefetches `next`. */
INLINE void sums_bytes(struct int4_sums *s, const struct int4_part *p, struct int4_tile t,
                       struct int4_rows x, struct linear_next next)
{
    for (uint32_t k = 0; k < p->a->w.group; k += 4) {
        const uint8_t *w = p->s->bytes + (size_t)(k / 4) * LINE + (size_t)t.strip * 4;
        ints v[KERN_PANEL / INTS];
        if (t.strip == 0)
            linear_prefetch(next.p, next.step, 1);
        next.p += next.step;
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = int4_load(w + (size_t)j * INTS * 4);
        int4_dot(s, t, v, &x, 0);
        int4_on(&x, 4);
    }
}

/* Through memory: gcc 12 spills sums inside the loop over K when the arithmetic follows it. */
INLINE void int4_store(const struct int4_part *p, const struct int4_sums *s, struct int4_tile t)
{
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        ints_store(&p->s->sum[r][t.strip] + j * INTS, s->v[r][j]);
}

static __attribute__((noinline)) void int4_epilogue_rows(const struct int4_part *p, uint32_t row,
                                                         uint32_t n)
{
    for (uint32_t r = row; r < row + n; r++)
        int4_epilogue(p, r);
}

INLINE void int4_tile(const struct int4_part *whole, uint32_t row, const int rows,
                      const bool packed)
{
    const struct int4_part p = *whole;
    const uint32_t n_tile = (p.n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const uint32_t i_tile = (row * n_tile + p.n_row - 1) / p.n_row;
    const size_t n_step = p.a->w.group / 4;
    struct linear_next next = {.step = int4_group_bytes(p.a->w.group) / (n_step * n_tile) + 1};
    struct int4_tile t = {.rows = rows, .n_vec = INTS_STRIP};
    if (rows == 1)
        t.n_vec = (int)KERN_PANEL / INTS; /* so that memory is read in order */
    else if (rows > (int)LINEAR_TILE)
        t.n_vec = INTS_STRIP / 2;
    if (int4_last(&p)) {
        const struct epilogue f = EPILOGUE_OF(p.a);
        const struct range of = {p.row + row, p.row + row + (uint32_t)rows};
        epilogue_prefetch(&f, of, p.o, int4_outputs(&p));
    }
    next.p = (const char *)p.next + i_tile * n_step * next.step;
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
        struct int4_sums s;
        UNROLL
        for (int r = 0; r < rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s.v[r][j] = ints_set(0);
        if (packed)
            sums_packed(&s, &p, t, int4_rows(&p, row, rows));
        else
            sums_bytes(&s, &p, t, int4_rows(&p, row, rows), next);
        int4_store(&p, &s, t);
        if (p.k == 0)
            int4_add(&p, t, row, true);
        else
            int4_add(&p, t, row, false);
    }
    if (int4_last(&p))
        int4_epilogue_rows(&p, row, (uint32_t)rows);
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
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    if (p->n_row <= INT4_FEW) {
        packed_tiles[p->n_row](p, 0);
        return;
    }
    int4_unpack(p);
    for (uint32_t i = 0; i < n_tile; i++) {
        uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        bytes_tiles[end - begin](p, begin);
    }
}

INLINE void linear_w4a8_ints(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    int4_tile_loop(a, x, int4_ints);
}

#endif
#endif
