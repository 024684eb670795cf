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
 * What the elements are, how a panel lies and what becomes of its sums is the form's; the loops are
 * the same for floats and for small integers (whose sums are int32 in the same places).
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_LINEAR_WALK_H
#define QUIRE_KERNELS_LINEAR_WALK_H
#include "kernels/split.h"
#include "kernels/wide/finish.h"
#ifdef VEC_SUMS

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

struct linear_form {
    const void *x, *w;           /* first row; first panel */
    size_t x_bytes, x_element;   /* between rows; of one element */
    size_t panel_bytes, k_bytes; /* of a panel; of one k of a panel */
    uint32_t n_k, n_row, n_panel;
    linear_tile_fn *const *tiles; /* [tile_rows]: tiles[r] does r + 1 rows */
    uint32_t tile_rows;
};
/* A row of a finished panel; `panel` is its number. */
typedef void linear_finish_fn(const void *args, const float *sum, size_t row, uint32_t panel);

/* The sums of a block of rows and one panel. */
static inline void linear_panel(const struct linear_form *f, float *sum, struct range rows,
                                uint32_t panel)
{
    const size_t row = rows.begin;
    const uint32_t n_row = (uint32_t)(rows.end - rows.begin);
    const char *w = (const char *)f->w + panel * f->panel_bytes;
    const uint32_t n_tile = (n_row + f->tile_rows - 1) / f->tile_rows;
    const uint32_t part = n_tile > LINEAR_FEW ? LINEAR_SLICE : LINEAR_SLICE / 2;
    const uint32_t slice = n_tile == 1 ? f->n_k : part / (uint32_t)f->k_bytes;
    struct linear_tile t = {.x_bytes = f->x_bytes};
    for (uint32_t k = 0; k < f->n_k; k += slice) {
        t.n_k = f->n_k - k < slice ? f->n_k - k : slice;
        t.w = w + k * f->k_bytes;
        t.first = k == 0;
        /* tiles of equal size, so that none is left with one row */
        for (uint32_t i = 0; i < n_tile; i++) {
            uint32_t begin = n_row * i / n_tile, end = n_row * (i + 1) / n_tile;
            t.x = (const char *)f->x + (row + begin) * t.x_bytes + k * f->x_element;
            t.sum = sum + (size_t)begin * KERN_PANEL;
            /* the last of several tiles computes from the cache; meanwhile the next slice comes */
            t.ahead = i > 0 && i + 1 == n_tile ? slice * f->k_bytes : LINEAR_AHEAD;
            f->tiles[end - begin - 1](&t);
        }
    }
}

static inline __attribute__((always_inline)) void linear_panels(const struct linear_form *f,
                                                                const struct kern_exec *x,
                                                                linear_finish_fn *finish,
                                                                const void *args)
{
    struct range panels = split(f->n_panel, x);
    float *sum = x->scratch;
    for (size_t row = 0; row < f->n_row; row += KERN_LINEAR_ROWS) {
        size_t left = f->n_row - row, n = left < KERN_LINEAR_ROWS ? left : KERN_LINEAR_ROWS;
        for (size_t p = panels.begin; p < panels.end; p++) {
            linear_panel(f, sum, (struct range){row, row + n}, (uint32_t)p);
            for (size_t i = 0; i < n; i++)
                finish(args, sum + i * KERN_PANEL, row + i, (uint32_t)p);
        }
    }
}

/* linear itself: floats. */
static inline void linear_finish(const void *args, const float *sum, size_t row, uint32_t panel)
{
    const struct linear_args *a = args;
    const struct finish f = FINISH_OF(a);
    const uint32_t end = a->w.n_out;
    for (uint32_t i = 0, o = panel * KERN_PANEL; i < KERN_PANEL && o + i < end; i += 32)
        finish_pair(&f, vec_load(sum + i), vec_load(sum + i + 16), row, o + i,
                    end - o - i < 32 ? end - o - i : 32);
}

static inline void linear_walk(const struct linear_args *a, const struct kern_exec *x,
                               linear_tile_fn *const *tiles)
{
    const size_t x_element = a->x_dtype == DT_BF16 ? 2 : 4;
    const size_t k_bytes = KERN_PANEL * (a->w.dtype == DT_F32 ? 4u : 2u);
    const size_t n_k_stored = a->w.dtype == DT_BF16 ? ((size_t)a->w.n_in + 1) / 2 * 2 : a->w.n_in;
    const struct linear_form f = {.x = a->x,
                                  .w = a->w.data,
                                  .x_bytes = a->x_stride * x_element,
                                  .x_element = x_element,
                                  .panel_bytes = n_k_stored * k_bytes,
                                  .k_bytes = k_bytes,
                                  .n_k = a->w.n_in,
                                  .n_row = a->n_row,
                                  .n_panel = (a->w.n_out + KERN_PANEL - 1) / KERN_PANEL,
                                  .tiles = tiles,
                                  .tile_rows = LINEAR_TILE};
    linear_panels(&f, x, linear_finish, a);
}

#endif
#endif
