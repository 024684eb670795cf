/* SPDX-License-Identifier: Apache-2.0 */
/* tiles_walk - the loops around tiles.h; private to kernels/amx.
 *
 *     for blocks of rows that fit half of the second-level cache
 *       for panels of this thread      the next panel is prefetched meanwhile, evenly
 *         for halves of the panel
 *           for groups of 32 rows
 *         the last rows, if 16 or fewer
 *
 * Threads: as tiles.h. */
#ifndef QUIRE_KERNELS_AMX_TILES_WALK_H
#define QUIRE_KERNELS_AMX_TILES_WALK_H
#include "kernels/amx/tiles.h"
#ifdef TILES_DOT

/* The end of K in whole steps of scratch: zeros times zeros are added behind it. */
INLINE void tail_of_x(struct tiles_walk *t, uint32_t n_row)
{
    for (uint32_t r = 0; t->n_tail && r < n_row; r++)
        memcpy(t->s->x_tail[r], t->x + r * t->f->x_bytes + (size_t)t->n_step * STEP_BYTES,
               t->n_tail);
}

/* Rows t->x …, low + high of them, outputs of half `half` of the panel. */
INLINE void group_half(struct tiles_walk *t, int half)
{
    const char *w = t->w + (size_t)half * 128, *x = t->x;
    float *sum = t->s->sum[t->turn];
    tail_of_x(t, t->low + t->high);
    tiles_zero();
    for (uint32_t i = 0; i < t->n_step; i++) {
        step_half(x + (size_t)i * STEP_BYTES, t->f->x_bytes, w + (size_t)i * STEP_PANEL);
        tiles_between(t);
    }
    if (t->n_tail)
        step_half(t->s->x_tail[0], STEP_BYTES, t->s->w_tail[0] + 128 * half);
    _tile_stored(0, sum, LINE_BYTES / 2);
    _tile_stored(1, sum + 16, LINE_BYTES / 2);
    _tile_stored(2, sum + TILE_ROWS * 32, LINE_BYTES / 2);
    _tile_stored(3, sum + TILE_ROWS * 32 + 16, LINE_BYTES / 2);
}

/* `alone`: there are no other rows. */
INLINE void group_whole(struct tiles_walk *t, const bool alone)
{
    const struct tiles_form *f = t->f;
    float *sum = t->s->sum[t->turn];
    tail_of_x(t, t->low);
    tiles_zero();
    for (uint32_t i = 0; i < t->n_step; i++) {
        step_whole(t, t->x + (size_t)i * STEP_BYTES, f->x_bytes, t->w + (size_t)i * STEP_PANEL,
                   alone);
        if (!alone)
            tiles_ahead(t);
        tiles_finish(t, t->quota);
    }
    if (t->n_tail)
        step_whole(t, t->s->x_tail[0], STEP_BYTES, t->s->w_tail[0], false);
    _tile_stored(0, sum, LINE_BYTES);
    _tile_stored(1, sum + 16, LINE_BYTES);
    _tile_stored(2, sum + 32, LINE_BYTES);
    _tile_stored(3, sum + 48, LINE_BYTES);
}

/* Rows that take the panel by halves; the rest, 16 or fewer, take it whole. */
INLINE size_t rows_by_halves(size_t n_row)
{
    return n_row % 32 > TILE_ROWS ? n_row : n_row / 32 * 32;
}

/* The panel starts at output o; rows are those of one block. */
INLINE void tiles_panel(struct tiles_walk *t, struct range rows, uint32_t o)
{
    const struct tiles_form *f = t->f;
    const uint32_t left = f->n_out - o;
    const size_t halves = rows.begin + rows_by_halves(rows.end - rows.begin);
    if (t->n_tail) /* 4 bytes of K a line */
        memcpy(t->s->w_tail, t->w + (size_t)t->n_step * STEP_PANEL,
               (t->n_tail + 3) / 4 * LINE_BYTES);
    for (int half = 0; half < 2; half++) {
        uint32_t skip = 32 * (uint32_t)half;
        for (size_t row = rows.begin; row < halves; row += 32) {
            size_t n = halves - row < 32 ? halves - row : 32;
            t->x = f->x + row * f->x_bytes;
            tiles_setup(t, TILE_ROWS, (uint32_t)n - TILE_ROWS);
            group_half(t, half);
            tiles_next(t, (struct tiles_done){.stride = 32,
                                              .n_row = skip < left ? (uint32_t)n : 0,
                                              .row = row,
                                              .o = o + skip,
                                              .n = left - skip < 32 ? left - skip : 32});
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
    tiles_next(t, (struct tiles_done){.stride = KERN_PANEL,
                                      .n_row = (uint32_t)(rows.end - halves),
                                      .row = halves,
                                      .o = o,
                                      .n = left < KERN_PANEL ? left : KERN_PANEL});
}

/* How many lines to ask for in each step, so that the next panel has come when this one is done. */
INLINE uint32_t lines_ahead(const struct tiles_walk *t, size_t n_row)
{
    size_t by_halves = rows_by_halves(n_row);
    size_t n_group = (by_halves + 31) / 32 * 2 + (by_halves < n_row);
    size_t n_step = n_group * t->n_step, n_line = t->f->panel_bytes / 64;
    return n_step ? (uint32_t)((n_line + n_step - 1) / n_step) : 0;
}

INLINE void tiles_walk(const struct tiles_form *f, const struct kern_exec *x,
                       tiles_finish_fn *finish)
{
    const struct range panels = split((f->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    struct tiles_walk t = {
        .f = f,
        .s = x->scratch,
        .finish = finish,
        .weights = {f->w + panels.begin * f->panel_bytes, f->w + panels.end * f->panel_bytes},
        .n_step = (uint32_t)(f->k_bytes / STEP_BYTES),
        .n_tail = (uint32_t)(f->k_bytes % STEP_BYTES)};
    const size_t most = BLOCK_BYTES / (f->k_bytes + 1) / 32 * 32, block = most ? most : 32;
    if (t.n_tail) {
        memset(t.s->x_tail, 0, sizeof t.s->x_tail);
        memset(t.s->w_tail, 0, sizeof t.s->w_tail);
    }
    stream_open(&t.weights);
    for (size_t row = 0; row < f->n_row; row += block) {
        struct range rows = {row, f->n_row - row < block ? f->n_row : row + block};
        const size_t n = rows.end - rows.begin;
        t.lines = lines_ahead(&t, n);
        for (size_t p = panels.begin; p < panels.end; p++) {
            t.w = f->w + p * f->panel_bytes;
            t.ahead = t.w + f->panel_bytes - STREAM_WINDOW;
            tiles_panel(&t, rows, (uint32_t)p * KERN_PANEL);
        }
    }
    tiles_finish(&t, UINT32_MAX);
    if (t.low)
        _tile_release();
}

#endif
#endif
