/* SPDX-License-Identifier: Apache-2.0 */
/* linear with f32 multiply-adds on 16 lanes; formula and order: ref/linear.c; loops around the
 * tiles: linear_tile_loop.h; a tile's sums: linear_strip.h.
 *
 * bf16 x is widened before it is used, LINEAR_X inputs of a tile's rows at a time: the broadcast of
 * an f32 is one load, that of a bf16 four instructions. With bf16 x and W subnormals are flushed
 * (MXCSR), which is the arithmetic of vdpbf16ps. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_H
#define QUIRE_KERNELS_WIDE_LINEAR_H
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/wide/linear_strip.h"
#ifdef VEC_SUMS

#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */

INLINE void tile_part(const struct linear_tile *t, const struct form f)
{
    const struct linear_tile local = *t; /* a local copy, which load_again() does not invalidate */
    for (uint32_t lane = 0; lane < KERN_PANEL; lane += 16 * (uint32_t)f.n_vec)
        tile_strip(&local, f, lane);
}

/* A slice in its parts. */
INLINE void tile_parts(const struct linear_tile *t, const struct form f)
{
    const size_t k_bytes = KERN_PANEL * (f.kind == W_F32 ? 4u : 2u);
    const uint32_t n = t->part;
    struct linear_tile part = *t;
    for (uint32_t k = 0; k < t->n_k; k += n) {
        part.n_k = t->n_k - k < n ? t->n_k - k : n;
        tile_part(&part, f);
        part.x = (const float *)part.x + part.n_k;
        part.w = (const char *)part.w + part.n_k * k_bytes;
        part.next.p += part.n_k / 2 * part.next.step;
        part.first = 0;
    }
}

INLINE void tile_strips(const struct linear_tile *t, const int rows, const enum kind kind)
{
    const int whole = rows == 1 || rows * VECS <= VEC_SUMS;
    const struct form f = {rows, whole ? VECS : rows * 2 <= VEC_SUMS ? 2 : 1, kind};
    if (whole || rows > (int)SLICE_ROWS || !t->part)
        tile_part(t, f);
    else
        tile_parts(t, f);
}

/* n values of bf16 as f32, and a zero behind an odd number of them. */
INLINE void widen_row(float *to, const uint16_t *from, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        vec_store(to + i, vec_load_bf16(from + i));
    for (; i < n; i++)
        to[i] = bf16_to_f32(from[i]);
    if (n % 2)
        to[n] = 0;
}

/* tile_strips of bf16 x, which is in f32 on the stack: 6 KiB for LINEAR_TILE rows. The last pair of
 * an odd n_k has 0 in x and in the padding of W. */
INLINE void tile_widened(const struct linear_tile *t, const int rows)
{
    float x[LINEAR_TILE][LINEAR_X];
    struct linear_tile part = *t;
    part.x = x;
    part.x_bytes = sizeof x[0];
    for (uint32_t k = 0, n; k < t->n_k; k += n) {
        n = t->n_k - k < LINEAR_X ? t->n_k - k : LINEAR_X;
        for (int r = 0; r < rows; r++) {
            const void *row = (const char *)t->x + (size_t)r * t->x_bytes;
            widen_row(x[r], (const uint16_t *)row + k, n);
        }
        part.n_k = (n + 1) / 2 * 2;
        tile_strips(&part, rows, BOTH_BF16);
        part.w = (const char *)part.w + n * KERN_PANEL * sizeof(uint16_t);
        part.next.p += n / 2 * part.next.step;
        part.first = 0;
    }
}

INLINE void tile(const struct linear_tile *t, const int rows, const enum kind kind)
{
    if (kind == BOTH_BF16)
        tile_widened(t, rows);
    else
        tile_strips(t, rows, kind);
}

/* Each kind for 1 to LINEAR_TILE rows, as functions and as the table of linear_tile_loop. */
#define TILE(name, kind, rows)                             \
    static void name##_##rows(const struct linear_tile *t) \
    {                                                      \
        tile(t, rows, kind);                               \
    }
#define TILES(name, kind)                                                           \
    TILE(name, kind, 1)                                                             \
    TILE(name, kind, 2)                                                             \
    TILE(name, kind, 3)                                                             \
    TILE(name, kind, 4)                                                             \
    TILE(name, kind, 5)                                                             \
    TILE(name, kind, 6)                                                             \
    static linear_tile_fn *const name[LINEAR_TILE] = {name##_1, name##_2, name##_3, \
                                                      name##_4, name##_5, name##_6};
TILES(tiles_f32, W_F32)
TILES(tiles_f16, W_F16)
TILES(tiles_bf16, W_BF16)
TILES(tiles_dot, BOTH_BF16)
#undef TILE
#undef TILES

/* Subnormals are zero inside the tile and nowhere else: bias and old y are added as they are. The
 * tile is a real call, so that none of its arithmetic can move past the switch. */
INLINE void flushed(linear_tile_fn *tile_fn, const struct linear_tile *t)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMAL);
    tile_fn(t);
    _mm_setcsr(before);
}
#define FLUSHED(rows)                                       \
    static void flushed_##rows(const struct linear_tile *t) \
    {                                                       \
        flushed(tiles_dot[(rows)-1], t);                    \
    }
FLUSHED(1)
FLUSHED(2)
FLUSHED(3)
FLUSHED(4)
FLUSHED(5)
FLUSHED(6)
#undef FLUSHED
static linear_tile_fn *const tiles_flushed[LINEAR_TILE] = {flushed_1, flushed_2, flushed_3,
                                                           flushed_4, flushed_5, flushed_6};

INLINE void wide_linear(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype == DT_BF16) {
        linear_tile_loop(a, x, tiles_flushed);
    } else if (a->w.dtype == DT_F32) {
        linear_tile_loop(a, x, tiles_f32);
    } else if (a->w.dtype == DT_F16) {
        linear_tile_loop(a, x, tiles_f16);
    } else {
        linear_tile_loop(a, x, tiles_bf16);
    }
}

#endif
#endif
