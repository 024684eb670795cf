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

/* Rows that take the panel by halves; the rest, 16 or fewer, take it whole. */
INLINE size_t rows_by_halves(size_t n_row)
{
    return n_row % 32 > TILE_ROWS ? n_row : n_row / 32 * 32;
}

/* The panel starts at output o; rows are those of one block. */
INLINE void tiles_panel(struct tiles_walk *t, struct range rows, uint32_t o,
                        tiles_finish_fn *finish)
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
            for (size_t i = 0; i < n && skip < left; i++)
                finish(f->args, t->s->sum[i] + skip, row + i, o + skip,
                       left - skip < 32 ? left - skip : 32);
        }
    }
    if (halves == rows.end)
        return;
    t->x = f->x + halves * f->x_bytes;
    tiles_setup(t, (uint32_t)(rows.end - halves), 0);
    group_whole(t);
    for (size_t i = halves; i < rows.end; i++)
        finish(f->args, t->s->sum[i - halves], i, o, left < KERN_PANEL ? left : KERN_PANEL);
}

/* Up to 16 rows read each weight once, as fast as memory gives it: bytes from what is read to what
 * is asked for. */
#define FEW_AHEAD 8192

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
    struct tiles_walk t = {.f = f,
                           .s = x->scratch,
                           .n_step = (uint32_t)(f->k_bytes / STEP_BYTES),
                           .n_tail = (uint32_t)(f->k_bytes % STEP_BYTES)};
    const struct range panels = split((f->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const size_t most = BLOCK_BYTES / (f->k_bytes + 1) / 32 * 32, block = most ? most : 32;
    if (t.n_tail) {
        memset(t.s->x_tail, 0, sizeof t.s->x_tail);
        memset(t.s->w_tail, 0, sizeof t.s->w_tail);
    }
    for (size_t row = 0; row < f->n_row; row += block) {
        struct range rows = {row, f->n_row - row < block ? f->n_row : row + block};
        const size_t n = rows.end - rows.begin;
        t.lines = lines_ahead(&t, n);
        for (size_t p = panels.begin; p < panels.end; p++) {
            t.w = f->w + p * f->panel_bytes;
            t.ahead = t.w + (n <= TILE_ROWS ? FEW_AHEAD : f->panel_bytes);
            tiles_panel(&t, rows, (uint32_t)p * KERN_PANEL, finish);
        }
    }
    if (t.low)
        _tile_release();
}

#endif
#endif
