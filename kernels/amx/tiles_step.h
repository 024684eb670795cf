/* SPDX-License-Identifier: Apache-2.0 */
/* tiles_step - the tile instructions of tiles.h, a step of K at a time; private to kernels/amx.
 * Threads: as tiles.h. */
#ifndef QUIRE_KERNELS_AMX_TILES_STEP_H
#define QUIRE_KERNELS_AMX_TILES_STEP_H
#include "kernels/amx/tiles.h"
#ifdef TILES_DOT

/* One step of two times 16 rows and half a panel. */
INLINE void step_half(const char *x, size_t x_bytes, const char *w)
{
    const char *x_soon = x + SOON * STEP_BYTES, *w_soon = w + SOON * STEP_PANEL;
    _tile_loadd(6, w, LINE_BYTES);
    tile_soon(x_soon, x_bytes);
    _tile_loadd(4, x, x_bytes);
    tile_soon(x_soon + TILE_ROWS * x_bytes, x_bytes);
    _tile_loadd(7, w + 64, LINE_BYTES);
    TILES_DOT(0, 4, 6);
    tile_soon(w_soon, LINE_BYTES);
    tile_soon(w_soon + 64, LINE_BYTES);
    _tile_loadd(5, x + TILE_ROWS * x_bytes, x_bytes);
    TILES_DOT(1, 4, 7);
    TILES_DOT(2, 5, 6);
    TILES_DOT(3, 5, 7);
}

/* During a quarter of a panel's step: prefetch as much of the next window, and the same quarter of
 * the next step into the first level. Many prefetches at once would delay each other, so they are
 * issued between the tile loads. */
INLINE void step_prefetch(const struct tiles_loop *t, const char *w)
{
    for (uint32_t i = 0; i < STEP_PANEL / 4; i += STREAM_UNIT) {
        stream_prefetch(&t->weights, w + i, STREAM_UNIT / 64);
        for (uint32_t j = 0; j < STREAM_UNIT; j += 64)
            _mm_prefetch(w + STEP_PANEL + i + j, _MM_HINT_T0);
    }
}

/* One step of up to 16 rows and a whole panel. `ahead`: each weight is read once, from memory. */
INLINE void step_whole(const struct tiles_loop *t, const char *x, size_t x_bytes, const char *w,
                       const bool ahead)
{
    _tile_loadd(4, x, x_bytes);
    _tile_loadd(5, w, LINE_BYTES);
    if (ahead)
        step_prefetch(t, w);
    _tile_loadd(6, w + 64, LINE_BYTES);
    TILES_DOT(0, 4, 5);
    if (ahead)
        step_prefetch(t, w + STEP_PANEL / 4);
    _tile_loadd(7, w + 128, LINE_BYTES);
    TILES_DOT(1, 4, 6);
    if (ahead)
        step_prefetch(t, w + STEP_PANEL / 2);
    _tile_loadd(5, w + 192, LINE_BYTES);
    TILES_DOT(2, 4, 7);
    TILES_DOT(3, 4, 5);
    if (ahead)
        step_prefetch(t, w + STEP_PANEL / 4 * 3);
}

/* The group's sums at the start: zeros, or those of the previous slices. */
INLINE void tiles_begin(const struct tiles_loop *t)
{
    if (t->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    const float *sum = t->kept[0];
    _tile_loadd(0, sum, STEP_BYTES);
    _tile_loadd(1, sum + 256, STEP_BYTES);
    _tile_loadd(2, sum + 512, STEP_BYTES);
    _tile_loadd(3, sum + 768, STEP_BYTES);
}

INLINE void tiles_keep(const struct tiles_loop *t)
{
    float *sum = t->kept[0];
    _tile_stored(0, sum, STEP_BYTES);
    _tile_stored(1, sum + 256, STEP_BYTES);
    _tile_stored(2, sum + 512, STEP_BYTES);
    _tile_stored(3, sum + 768, STEP_BYTES);
}

#endif
#endif
