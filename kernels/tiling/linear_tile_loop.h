/* SPDX-License-Identifier: Apache-2.0 */
/* linear_tile_loop - the loops around the micro-kernels of linear; private to kernels/, compiled
 * into each variant.
 *
 * A micro-kernel (linear_tile.h) adds a slice of K to the sums of 1 to LINEAR_TILE rows x one
 * panel, in the order of ref/linear.c. Sums are kept in scratch between slices; storing and
 * reloading an f32 changes no bit, so the sizes of slices, tiles and row blocks are chosen for
 * speed:
 *
 *     for row blocks of at most KERN_LINEAR_ROWS    W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for slices of K                           64 x slice weights stay in L1 or L2 …
 *           for tiles of LINEAR_TILE rows           … while every tile of the block uses them
 *             the tile                              and a part of the next slice is prefetched
 *             of the last slice: + bias, + y, store while the next tile's sums begin
 *
 * Each tile prefetches its part of the next slice: a prefetch of the whole slice during one tile
 * would make that tile wait for memory. Slices of the second-level cache (slice.h) store sums less
 * often, and up to LINEAR_FAR tiles prefetch into it: the first level has too few misses in flight
 * to read at the rate of memory. A tile whose sums are all in registers at once (decoding: up to
 * LINEAR_ONE_PASS rows) reads its weights once, in one slice, from first byte to last. The loops
 * are the same for floats and for integers (int32 sums in the same memory): struct linear_form.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_TILING_LINEAR_TILE_LOOP_H
#define QUIRE_KERNELS_TILING_LINEAR_TILE_LOOP_H
#include "kernels/reading.h"
#include "kernels/tiling/linear_tile.h"
#include "kernels/tiling/share.h"
#include "kernels/tiling/slice.h"
#include "kernels/wide/epilogue.h"
#ifdef VEC_SUMS

#define LINEAR_FAR 3u

/* Rows of which the registers hold the sums of a whole panel: 6, or 1 on AVX2. More are summed in
 * strips of the panel, which read the weights of a slice again, from L1. */
#define LINEAR_ONE_PASS (VEC_SUMS * 16 / KERN_PANEL)

struct linear_form {
    const void *x, *w;           /* first row; first panel */
    size_t x_bytes, x_element;   /* between rows; of one element */
    size_t panel_bytes, k_bytes; /* of a panel; of one k of a panel */
    size_t ahead;                /* bytes prefetched ahead of a panel that is read once */
    uint32_t k_step;             /* k per step of a tile */
    uint32_t n_k, n_row, n_out;
    uint32_t part;                /* struct linear_tile.part of all tiles */
    linear_tile_fn *const *tiles; /* [LINEAR_TILE]: tiles[r] does r + 1 rows */
    struct epilogue y;
};
/* Rows of a finished panel; `panel` is its number. */
typedef void linear_epilogue_fn(const void *args, const float *sum, struct range, uint32_t panel);

struct linear_panel { /* of a block of rows */
    const struct linear_form *f;
    float *sum;
    struct range rows;
    uint32_t panel, next; /* next: the following panel */
    linear_epilogue_fn *epilogue;
    const void *args;
};

static inline const char *linear_panel_at(const struct linear_form *f, uint32_t panel)
{
    return (const char *)f->w + panel * f->panel_bytes;
}

/* Bytes of a slice in the second-level cache; 0: it is one of the first level. */
static inline uint32_t linear_far_bytes(void)
{
    return LINEAR_ONE_PASS > 1 ? atomic_load_explicit(&kern_slice_far_bytes, memory_order_relaxed)
                               : 0;
}

/* Inputs of a slice: slices of equal size, whole steps. */
static inline uint32_t linear_slice(const struct linear_form *f, size_t n_row, uint32_t n_tile)
{
    const uint32_t far = linear_far_bytes();
    const uint32_t most = (far ? far : slice_bytes(n_row, n_tile)) / (uint32_t)f->k_bytes;
    const uint32_t n_slice = (f->n_k + most - 1) / most;
    LINEAR_ASSUME(n_slice > 0); /* there is K */
    return n_row <= LINEAR_ONE_PASS || f->part ? f->n_k
                                               : ((f->n_k + n_slice - 1) / n_slice + 3) / 4 * 4;
}

/* Tile i of n_tile; `last`: it finishes its sums. */
static inline __attribute__((always_inline)) void
linear_rows(const struct linear_panel *p, struct linear_tile *t, struct range rows, int last)
{
    const struct linear_form *f = p->f;
    const uint32_t o = p->panel * KERN_PANEL;
    LINEAR_ASSUME(rows.end - rows.begin - 1 < LINEAR_TILE);
    t->x = (const char *)t->x + (rows.begin - p->rows.begin) * f->x_bytes;
    t->sum = p->sum + (rows.begin - p->rows.begin) * KERN_PANEL;
    if (last)
        epilogue_prefetch(&f->y, rows, o, f->n_out - o < KERN_PANEL ? f->n_out - o : KERN_PANEL);
    f->tiles[rows.end - rows.begin - 1](t);
    if (last)
        p->epilogue(p->args, t->sum, rows, p->panel);
}

static inline __attribute__((always_inline)) void linear_panel(const struct linear_panel *p)
{
    const struct linear_form *f = p->f;
    const char *w = linear_panel_at(f, p->panel);
    const char *x = (const char *)f->x + p->rows.begin * f->x_bytes;
    const size_t n_row = p->rows.end - p->rows.begin, step_bytes = f->k_step * f->k_bytes;
    const uint32_t n_tile = (uint32_t)((n_row + LINEAR_TILE - 1) / LINEAR_TILE);
    const uint32_t slice = linear_slice(f, n_row, n_tile);
    LINEAR_ASSUME(n_tile > 0);
    const size_t ahead = (step_bytes + n_tile - 1) / n_tile;
    for (uint32_t k = 0; k < f->n_k; k += slice) {
        const int last = f->n_k - k <= slice;
        const char *next = last ? linear_panel_at(f, p->next) : w + (k + slice) * f->k_bytes;
        struct linear_tile t = {.x_bytes = f->x_bytes, .w = w + k * f->k_bytes, .first = k == 0};
        t.n_k = last ? f->n_k - k : slice;
        t.next.step = ahead;
        t.is_far = n_tile > 1 && n_tile <= LINEAR_FAR && linear_far_bytes();
        t.part = f->part;
        t.next.p = n_row <= LINEAR_ONE_PASS ? (const char *)t.w + f->ahead
                   : t.part                 ? (const char *)t.w + t.part * f->k_bytes
                                            : next;
        if (last && n_row > LINEAR_ONE_PASS) /* no tile prefetches the scales */
            linear_prefetch_all(w + f->n_k * f->k_bytes, w + f->panel_bytes);
        /* tiles of equal size, so that no tile has one row only */
        for (uint32_t i = 0; i < n_tile; i++) {
            t.x = x + k * f->x_element;
            linear_rows(p, &t,
                        (struct range){p->rows.begin + n_row * i / n_tile,
                                       p->rows.begin + n_row * (i + 1) / n_tile},
                        last);
            t.next.p += t.n_k / f->k_step * t.next.step;
        }
    }
}

static inline __attribute__((always_inline)) void linear_panels(const struct linear_form *f,
                                                                const struct kern_exec *x,
                                                                linear_epilogue_fn *epilogue,
                                                                const void *args)
{
    struct panels panels = panels_of((f->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const size_t block = linear_block(f->n_row);
    struct linear_panel p = {.f = f, .sum = x->scratch, .epilogue = epilogue, .args = args};
    for (size_t row = 0; row < f->n_row; row += block) {
        p.rows = (struct range){row, f->n_row - row < block ? f->n_row : row + block};
        panels_start(&panels, p.rows.end == f->n_row);
        for (size_t i; panels_next(&panels, &i);) {
            p.panel = (uint32_t)i;
            p.next = (uint32_t)panels_after(&panels, i);
            linear_panel(&p);
        }
    }
}

/* linear itself: floats. */
static inline void linear_epilogue(const void *args, const float *sum, size_t row, uint32_t panel)
{
    const struct linear_args *a = args;
    const struct epilogue f = EPILOGUE_OF(a);
    const uint32_t end = a->w.n_out;
    for (uint32_t i = 0, o = panel * KERN_PANEL; i < KERN_PANEL && o + i < end; i += 32)
        epilogue_pair(&f, vec_load(sum + i), vec_load(sum + i + 16), row, o + i,
                      end - o - i < 32 ? end - o - i : 32);
}

static inline void linear_epilogue_rows(const void *args, const float *sum, struct range rows,
                                        uint32_t panel)
{
    for (size_t i = rows.begin; i < rows.end; i++)
        linear_epilogue(args, sum + (i - rows.begin) * KERN_PANEL, i, panel);
}

static inline void linear_tile_loop(const struct linear_args *a, const struct kern_exec *x,
                                    linear_tile_fn *const *tiles)
{
    const size_t x_element = a->x_dtype == DT_BF16 ? 2 : 4;
    const size_t k_bytes = KERN_PANEL * (a->w.dtype == DT_F32 ? 4u : 2u);
    const size_t n_k_stored = a->w.dtype == DT_BF16 ? ((size_t)a->w.n_in + 1) / 2 * 2 : a->w.n_in;
    const struct linear_form f = {
        .x = a->x,
        .w = a->w.data,
        .x_bytes = a->x_stride * x_element,
        .x_element = x_element,
        .panel_bytes = n_k_stored * k_bytes,
        .k_bytes = k_bytes,
        .ahead = kern_ahead(KERN_PRODUCT_FLOATS),
        .k_step = 2,
        .part = a->n_row > LINEAR_ONE_PASS ? slice_part(a->n_row, (uint32_t)k_bytes) : 0,
        .n_k = a->w.n_in,
        .n_row = a->n_row,
        .n_out = a->w.n_out,
        .tiles = tiles,
        .y = EPILOGUE_OF(a),
    };
    linear_panels(&f, x, linear_epilogue_rows, a);
}

#endif
#endif
