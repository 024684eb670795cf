/* SPDX-License-Identifier: Apache-2.0 */
/* tiles - a group of rows times a panel by AMX tiles; private to kernels/amx. The including file
 * defines the instruction, TILES_DOT(sum, x, w). tiles_loop.h has the loops around it.
 *
 * One step is 64 bytes of K of 16 rows x 16 outputs. The packed layouts of ops.h and ops_int8.h
 * are what the tile registers load: a step of a panel is 16 lines of 256 bytes, a tile of W is 64
 * bytes of each. A group of 17 to 32 rows takes half a panel at a time, two tiles of x by two of W:
 *
 *     tile 0 1   sums of the first 16 rows, two times 16 outputs     tile 4 5   x, 16 rows each
 *     tile 2 3   of the other rows                                   tile 6 7   W
 *
 * and up to 16 rows take the whole panel: tiles 0 … 3 hold sums, 4 x, 5 6 7 W in rotation. Sums
 * stay in their tiles from the first k to the last, so an output's sum is one chain of tile
 * instructions along K: its order does not depend on the number of rows. A tile instruction takes
 * as long for one row as for three, so one row is bound by memory too.
 *
 * The epilogue of a group (bias, scales, silu …) takes as long as its tile instructions and uses
 * other units of the core: it runs between the steps of the next group, some rows at a time.
 *
 * Threads: each thread configures and releases its own tile registers. */
#ifndef QUIRE_KERNELS_AMX_TILES_H
#define QUIRE_KERNELS_AMX_TILES_H
#include <string.h>
#include "kernels/amx/tile.h"
#include "kernels/ops/epilogue.h"
#include "kernels/tiling/split.h"
#include "kernels/tiling/stream.h"
#ifdef TILES_DOT

#define STEP_BYTES  64u  /* of a row of x */
#define LINE_BYTES  256u /* of a panel: 64 outputs x 4 bytes of K */
#define STEP_PANEL  (16 * LINE_BYTES)
#define Y_ROWS      64u /* of y, which stay in the cache from one product to the next */
#define SLICE_BYTES ((size_t)3 << 19) /* of x: three quarters of a 2 MiB cache */
#define BLOCK_ROWS  256u              /* at least, where there are so many */
#define UNIT_SUMS   1024u             /* of a group: 32 rows x 32 outputs or 16 x 64 */
#define UNITS_KEPT  102u              /* groups of 6 panels x 256 rows */

struct tiles_form {
    const char *x, *w;           /* first row; first panel */
    size_t x_bytes, panel_bytes; /* between rows, between panels */
    size_t k_bytes; /* used bytes of a row of x; a multiple of 4, except when x ends with two
                     * bytes more */
    uint32_t n_row, n_out;
    const void *args;  /* of the epilogue */
    struct epilogue y; /* destination of the epilogue */
};

struct tiles_done {   /* a group's sums, in its epilogue */
    const float *sum; /* [n_row][stride] */
    uint32_t stride;  /* 32, half a panel, or KERN_PANEL */
    uint32_t n_row;   /* remaining rows */
    size_t row;       /* number of the first one */
    uint32_t o, n;    /* first output; number of outputs */
};
/* Epilogue: store the sums of the first n_row rows. */
typedef void tiles_epilogue_fn(const void *args, const struct tiles_done *d, uint32_t n_row);

struct tiles_scratch {
    float sum[2][TILE_ROWS * KERN_PANEL];   /* double buffer: this group and the one before */
    char x_tail[2 * TILE_ROWS][STEP_BYTES]; /* the last bytes of K, zeros behind them */
    char w_tail[16][LINE_BYTES];
    float kept[UNITS_KEPT][UNIT_SUMS]; /* [tile][row][16], from one slice of K to the next */
};

struct tiles_loop {
    const struct tiles_form *f;
    struct tiles_scratch *s;
    struct range steps;       /* whole steps of the slice */
    uint32_t n_tail;          /* bytes after the last slice's */
    bool first, last;         /* slice */
    float (*kept)[UNIT_SUMS]; /* the group's */
    uint32_t low, high;       /* rows the tiles are set up for; high 0: a whole panel */
    const char *ahead;        /* the next prefetch is one window after this address */
    struct stream weights;    /* that this thread reads */
    uint32_t lines;           /* prefetched in one step */
    const char *x, *w;        /* of the group */
    tiles_epilogue_fn *epilogue;
    struct tiles_done done; /* of the group before */
    uint32_t quota;         /* rows of it in one step */
    uint32_t buffer;        /* index of the buffer for the next group */
};

INLINE void tiles_setup(struct tiles_loop *t, uint32_t low, uint32_t high)
{
    if (low == t->low && high == t->high)
        return;
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool upper = high && (i == 2 || i == 3 || i == 5);
        bool of_w = i >= 6 || (!high && i == 5);
        c.row_bytes[i] = STEP_BYTES;
        c.rows[i] = (uint8_t)(of_w ? TILE_ROWS : upper ? high : low);
    }
    tile_configure(&c);
    t->low = low;
    t->high = high;
}

INLINE void tiles_prefetch(struct tiles_loop *t)
{
    for (uint32_t i = 0; i < t->lines; i++)
        stream_prefetch(&t->weights, t->ahead + (size_t)i * 64, 1);
    t->ahead += (size_t)t->lines * 64;
}

INLINE void tiles_epilogue(struct tiles_loop *t, uint32_t n_row)
{
    struct tiles_done *d = &t->done;
    if (d->n_row == 0)
        return;
    n_row = n_row < d->n_row ? n_row : d->n_row;
    t->epilogue(t->f->args, d, n_row);
    d->sum += (size_t)n_row * d->stride;
    d->row += n_row;
    d->n_row -= n_row;
}

/* Work between two steps: prefetch, and the epilogue of the previous group. */
INLINE void tiles_between(struct tiles_loop *t)
{
    tiles_prefetch(t);
    tiles_epilogue(t, t->quota);
}

/* The group's sums are stored in the current buffer: run their epilogue next. */
INLINE void tiles_next(struct tiles_loop *t, struct tiles_done d)
{
    tiles_epilogue(t, UINT32_MAX);
    d.sum = t->s->sum[t->buffer];
    t->buffer = !t->buffer;
    t->done = d;
    if (t->f->n_row > Y_ROWS)
        epilogue_prefetch(&t->f->y, (struct range){d.row, d.row + d.n_row}, d.o, d.stride);
    const uint32_t n_step = (uint32_t)(t->steps.end - t->steps.begin);
    t->quota = n_step ? (d.n_row + n_step - 1) / n_step : d.n_row;
}

#endif
#endif
