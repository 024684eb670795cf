/* SPDX-License-Identifier: Apache-2.0 */
/* linear_walk - the loops around the micro-kernels of linear; private to kernels/, compiled into
 * each variant.
 *
 * A micro-kernel ("tile") adds a slice of K to the sums of 1 to LINEAR_TILE rows x one panel, in
 * the order of ref/linear.c. Sums wait in scratch between slices; storing and reloading an f32
 * changes no bit, so slices, tiles and row blocks are free to be what is fast:
 *
 *     for row blocks of KERN_LINEAR_ROWS            W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for slices of K                           64 x slice weights stay in L1 …
 *           for tiles of LINEAR_TILE rows           … while every tile of the block uses them
 *         + bias, + y, store
 *
 * One tile's worth of rows or fewer (decoding) has nothing to reuse: one slice, the panel is
 * read from first byte to last.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_LINEAR_WALK_H
#define QUIRE_KERNELS_LINEAR_WALK_H
#include "kernels/split.h"

#define LINEAR_TILE \
    6u /* rows: 6 x 64 outputs are 24 vectors of 16, which leaves 8 registers for W and x */
/* Bytes of a panel: two thirds of a 48 KiB L1. Up to LINEAR_FEW tiles wait for memory rather than
 * for arithmetic; then half, so that the next slice comes in beside the one in use (8 rows: 15 %
 * faster; many rows: 3 % slower). */
#define LINEAR_SLICE 32768u
#define LINEAR_FEW   4u

struct linear_tile {
    const void *x;  /* first row, at the start of the slice */
    size_t x_bytes; /* between rows */
    const void *w;  /* the panel, at the start of the slice */
    uint32_t n_k;   /* of the slice; odd only in the last one */
    float *sum;     /* [rows][KERN_PANEL], 64-byte aligned */
    size_t ahead;   /* bytes from what is read to what is prefetched */
    int first;      /* start from zero instead of sum */
};
typedef void linear_tile_fn(const struct linear_tile *t);

#define LINEAR_AHEAD 2048 /* bytes; see kernels/README.md, "prefetch" */

/* Ask for what comes t->ahead bytes after byte `at` of the slice; past the end of the weights it
 * does nothing. */
static inline __attribute__((always_inline)) void linear_ahead(const struct linear_tile *t,
                                                               size_t at, const int n_line)
{
    const char *p = (const char *)t->w + at + t->ahead;
    for (int i = 0; i < n_line; i++)
        __builtin_prefetch(p + 64 * i);
}

/* The panel is done: y = sum + bias (+ y). Plain C that the compiler makes vectors of; single
 * adds in any order. */
static inline void linear_finish(const struct linear_args *a, const float *sum, size_t row,
                                 uint32_t o)
{
    uint32_t n = a->w.n_out - o < KERN_PANEL ? a->w.n_out - o : KERN_PANEL;
    float *y = a->y + row * a->y_stride + o;
    float out[KERN_PANEL];
    for (uint32_t i = 0; i < n; i++)
        out[i] = a->bias ? sum[i] + a->bias[o + i] : sum[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = a->accumulate ? out[i] + y[i] : out[i];
}

/* A block of rows of one panel. tiles[r] does r + 1 rows. */
static inline void linear_panel(const struct linear_args *a, float *sum,
                                linear_tile_fn *const *tiles, struct range rows, uint32_t panel)
{
    const size_t row = rows.begin;
    const uint32_t n_row = (uint32_t)(rows.end - rows.begin);
    const size_t x_element = a->x_dtype == DT_BF16 ? 2 : 4;
    const size_t w_element = a->w.dtype == DT_F32 ? 4 : 2;
    const size_t n_k_stored = a->w.dtype == DT_BF16 ? ((size_t)a->w.n_in + 1) / 2 * 2 : a->w.n_in;
    const char *w = (const char *)a->w.data + panel * n_k_stored * KERN_PANEL * w_element;
    const uint32_t n_tile = (n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const uint32_t part = n_tile > LINEAR_FEW ? LINEAR_SLICE : LINEAR_SLICE / 2;
    const uint32_t slice = n_tile == 1 ? a->w.n_in : part / (KERN_PANEL * (uint32_t)w_element);
    const size_t slice_bytes = (size_t)slice * KERN_PANEL * w_element;
    struct linear_tile t = {.x_bytes = a->x_stride * x_element};
    for (uint32_t k = 0; k < a->w.n_in; k += slice) {
        t.n_k = a->w.n_in - k < slice ? a->w.n_in - k : slice;
        t.w = w + (size_t)k * KERN_PANEL * w_element;
        t.first = k == 0;
        /* tiles of equal size, so that none is left with one row */
        for (uint32_t i = 0; i < n_tile; i++) {
            uint32_t begin = n_row * i / n_tile, end = n_row * (i + 1) / n_tile;
            t.x = (const char *)a->x + (row + begin) * t.x_bytes + k * x_element;
            t.sum = sum + (size_t)begin * KERN_PANEL;
            /* the last of several tiles computes from the cache; meanwhile the next slice comes */
            t.ahead = i > 0 && i + 1 == n_tile ? slice_bytes : LINEAR_AHEAD;
            tiles[end - begin - 1](&t);
        }
    }
    for (uint32_t i = 0; i < n_row; i++)
        linear_finish(a, sum + (size_t)i * KERN_PANEL, row + i, panel * KERN_PANEL);
}

static inline void linear_walk(const struct linear_args *a, const struct kern_exec *x,
                               linear_tile_fn *const *tiles)
{
    struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    for (size_t row = 0; row < a->n_row; row += KERN_LINEAR_ROWS) {
        size_t left = a->n_row - row;
        struct range rows = {row, row + (left < KERN_LINEAR_ROWS ? left : KERN_LINEAR_ROWS)};
        for (size_t p = panels.begin; p < panels.end; p++)
            linear_panel(a, x->scratch, tiles, rows, (uint32_t)p);
    }
}

#endif
