/* SPDX-License-Identifier: Apache-2.0 */
/* tiles_loop - the loops around tiles.h; private to kernels/amx.
 *
 *     for blocks of rows
 *       for panels of this thread, as many as `kept` has room for
 *         for slices of K              x of all the block's rows fits the second-level cache
 *           for panels                 the next one is prefetched meanwhile, evenly
 *             for halves of the panel
 *               for groups of 32 rows
 *             the last rows, if 16 or fewer
 *
 * If all of x fits, there is one slice, and no sums are kept. Otherwise the sums of a group are
 * stored between slices, because the weights would be read again for every few rows; storing and
 * loading tiles rounds nothing.
 *
 * Threads: as tiles.h. */
#ifndef QUIRE_KERNELS_AMX_TILES_LOOP_H
#define QUIRE_KERNELS_AMX_TILES_LOOP_H
#include "kernels/amx/tiles_step.h"
#include "kernels/tiling/int4_scratch.h"
#ifdef TILES_DOT

_Static_assert(sizeof(struct tiles_scratch) <= sizeof(struct int4_tiles_scratch),
               "kern_scratch_bytes counts the larger");

/* Copy the end of K to scratch, padded with zeros to whole steps. */
INLINE void tail_of_x(struct tiles_loop *t, uint32_t n_row)
{
    for (uint32_t r = 0; t->last && t->n_tail && r < n_row; r++)
        memcpy(t->s->x_tail[r], t->x + r * t->f->x_bytes + t->steps.end * STEP_BYTES, t->n_tail);
}

/* Rows t->x …, low + high of them, outputs of half `half` of the panel. */
INLINE void group_half(struct tiles_loop *t, int half)
{
    const char *w = t->w + (size_t)half * 128, *x = t->x;
    float *sum = t->s->sum[t->buffer];
    tail_of_x(t, t->low + t->high);
    tiles_begin(t);
    for (size_t i = t->steps.begin; i < t->steps.end; i++) {
        step_half(x + i * STEP_BYTES, t->f->x_bytes, w + i * STEP_PANEL);
        tiles_between(t);
    }
    if (!t->last) {
        tiles_keep(t);
        return;
    }
    if (t->n_tail)
        step_half(t->s->x_tail[0], STEP_BYTES, t->s->w_tail[0] + 128 * half);
    _tile_stored(0, sum, LINE_BYTES / 2);
    _tile_stored(1, sum + 16, LINE_BYTES / 2);
    _tile_stored(2, sum + TILE_ROWS * 32, LINE_BYTES / 2);
    _tile_stored(3, sum + TILE_ROWS * 32 + 16, LINE_BYTES / 2);
}

/* `alone`: there are no other rows. */
INLINE void group_whole(struct tiles_loop *t, const bool alone)
{
    const struct tiles_form *f = t->f;
    float *sum = t->s->sum[t->buffer];
    tail_of_x(t, t->low);
    tiles_begin(t);
    for (size_t i = t->steps.begin; i < t->steps.end; i++) {
        step_whole(t, t->x + i * STEP_BYTES, f->x_bytes, t->w + i * STEP_PANEL, alone);
        if (!alone)
            tiles_prefetch(t);
        tiles_epilogue(t, t->quota);
    }
    if (!t->last) {
        tiles_keep(t);
        return;
    }
    if (t->n_tail)
        step_whole(t, t->s->x_tail[0], STEP_BYTES, t->s->w_tail[0], false);
    _tile_stored(0, sum, LINE_BYTES);
    _tile_stored(1, sum + 16, LINE_BYTES);
    _tile_stored(2, sum + 32, LINE_BYTES);
    _tile_stored(3, sum + 48, LINE_BYTES);
}

/* Groups of a panel. */
INLINE size_t units_of(size_t n_row)
{
    const size_t halves = rows_by_halves(n_row);
    return (halves + 31) / 32 * 2 + (halves < n_row);
}

/* The slice's sums of a panel that starts at output o; rows are those of one block. kept: a place
 * for each group. */
INLINE void tiles_panel(struct tiles_loop *t, struct range rows, uint32_t o,
                        float (*kept)[UNIT_SUMS])
{
    const struct tiles_form *f = t->f;
    const uint32_t left = f->n_out - o;
    const size_t halves = rows.begin + rows_by_halves(rows.end - rows.begin);
    t->kept = kept;
    if (t->last && t->n_tail) /* 4 bytes of K a line */
        memcpy(t->s->w_tail, t->w + t->steps.end * STEP_PANEL, (t->n_tail + 3) / 4 * LINE_BYTES);
    for (int half = 0; half < 2; half++) {
        uint32_t skip = 32 * (uint32_t)half;
        for (size_t row = rows.begin; row < halves; row += 32, t->kept++) {
            size_t n = halves - row < 32 ? halves - row : 32;
            t->x = f->x + row * f->x_bytes;
            tiles_setup(t, TILE_ROWS, (uint32_t)n - TILE_ROWS);
            group_half(t, half);
            if (t->last)
                tiles_next(t, (struct tiles_done){
                                  .stride = 32,
                                  .n_row = skip < left ? (uint32_t)n : 0,
                                  .row = row,
                                  .o = o + skip,
                                  .n = left - skip < 32 ? left - skip : 32,
                              });
        }
    }
    if (halves == rows.end)
        return;
    t->x = f->x + halves * f->x_bytes;
    tiles_setup(t, (uint32_t)(rows.end - halves), 0);
    if (halves == rows.begin)
        group_whole(t, true);
    else
        group_whole(t, false);
    if (t->last)
        tiles_next(t, (struct tiles_done){
                          .stride = KERN_PANEL,
                          .n_row = (uint32_t)(rows.end - halves),
                          .row = halves,
                          .o = o,
                          .n = left < KERN_PANEL ? left : KERN_PANEL,
                      });
}

/* One slice of K times some panels. */
INLINE void tiles_slice(struct tiles_loop *t, struct range rows, struct range panels)
{
    const size_t n_unit = units_of(rows.end - rows.begin);
    const size_t n_step = t->steps.end - t->steps.begin, n_line = n_step * (STEP_PANEL / 64);
    /* prefetched in each step, so that the next panel's slice has arrived at the end of this one */
    t->lines = n_step ? (uint32_t)((n_line + n_unit * n_step - 1) / (n_unit * n_step)) : 0;
    for (size_t p = panels.begin; p < panels.end; p++) {
        t->w = t->f->w + p * t->f->panel_bytes;
        t->ahead = t->w + t->f->panel_bytes + t->steps.begin * STEP_PANEL - STREAM_WINDOW;
        tiles_panel(t, rows, (uint32_t)p * KERN_PANEL,
                    t->s->kept + (t->first && t->last ? 0 : (p - panels.begin) * n_unit));
    }
}

/* The thread's panels for one block of rows, in n_slice slices. */
INLINE void tiles_block(struct tiles_loop *t, struct range rows, struct range panels,
                        size_t n_slice)
{
    const size_t n_step = t->f->k_bytes / STEP_BYTES;
    const size_t most = n_slice > 1 ? UNITS_KEPT / units_of(rows.end - rows.begin) : SIZE_MAX;
    for (struct range some = panels; some.begin < panels.end; some.begin = some.end) {
        some.end = panels.end - some.begin < most ? panels.end : some.begin + most;
        for (size_t i = 0; i < n_slice; i++) {
            t->steps = (struct range){n_step * i / n_slice, n_step * (i + 1) / n_slice};
            t->first = i == 0;
            t->last = i + 1 == n_slice;
            tiles_slice(t, rows, some);
        }
    }
}

INLINE void tiles_loop(const struct tiles_form *f, const struct kern_exec *x,
                       tiles_epilogue_fn *epilogue)
{
    const struct range panels = split((f->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    struct tiles_loop t = {
        .f = f,
        .s = x->scratch,
        .epilogue = epilogue,
        .weights = {f->w + panels.begin * f->panel_bytes, f->w + panels.end * f->panel_bytes},
        .n_tail = (uint32_t)(f->k_bytes % STEP_BYTES),
    };
    const size_t fit = SLICE_BYTES / (f->k_bytes + 1) / 32 * 32; /* whole, in one slice */
    const size_t block = rows_even(f->n_row, fit > BLOCK_ROWS ? fit : BLOCK_ROWS);
    if (t.n_tail) {
        memset(t.s->x_tail, 0, sizeof t.s->x_tail);
        memset(t.s->w_tail, 0, sizeof t.s->w_tail);
    }
    stream_open(&t.weights);
    for (size_t row = 0; row < f->n_row; row += block) {
        struct range rows = {row, f->n_row - row < block ? f->n_row : row + block};
        const size_t bytes = (rows.end - rows.begin) * f->k_bytes;
        tiles_block(&t, rows, panels, (bytes + SLICE_BYTES - 1) / SLICE_BYTES);
    }
    tiles_epilogue(&t, UINT32_MAX);
    if (t.low)
        _tile_release();
}

#endif
#endif
