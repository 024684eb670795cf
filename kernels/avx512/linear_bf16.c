/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W by vdpbf16ps, 32 multiply-adds an instruction; everything else
 * is linear_avx512. Formula and order: ref/linear.c. The instruction ignores MXCSR. */
#include <immintrin.h>
#include <string.h>
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/tiling/unroll.h"
#include "kernels/variants.h"

/* Two elements of x in every lane; the second is 0 when the row ends before it. */
INLINE __m512bh pair(const char *x, int both)
{
    uint32_t bits = 0;
    memcpy(&bits, x, both ? 4 : 2);
    return (__m512bh)_mm512_set1_epi32((int)bits);
}

INLINE void step(__m512 sum[][4], const int rows, const char *x, const size_t *row, const char *w,
                 int both)
{
    const __m512i *line = (const __m512i *)(const void *)w;
    UNROLL
    for (int r = 0; r < rows; r++) {
        __m512bh b = pair(x + row[r], both);
        UNROLL
        for (int j = 0; j < 4; j++)
            sum[r][j] = _mm512_dpbf16_ps(sum[r][j], (__m512bh)line[j], b);
    }
}

INLINE void tile(const struct linear_tile *t, const int rows, const int is_far)
{
    __m512 sum[LINEAR_TILE][4];
    size_t row[LINEAR_TILE];
    UNROLL
    for (int r = 0; r < rows; r++)
        row[r] = linear_row(t->x_bytes, r);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        sum[r][j] =
            t->first ? _mm512_setzero_ps() : _mm512_load_ps(t->sum + r * KERN_PANEL + 16 * j);
    const char *x = t->x, *w = t->w;
    struct linear_next next = t->next;
    for (const char *end = x + (size_t)t->n_k / 2 * 4; x < end; x += 4, w += 4 * KERN_PANEL) {
        if (is_far)
            linear_prefetch_far(next.p, next.step, 4);
        else
            linear_prefetch(next.p, next.step, 4);
        next.p += next.step;
        step(sum, rows, x, row, w, 1);
    }
    if (t->n_k % 2)
        step(sum, rows, x, row, w, 0);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_store_ps(t->sum + r * KERN_PANEL + 16 * j, sum[r][j]);
}

#define TILE(rows)                                       \
    static void tile_##rows(const struct linear_tile *t) \
    {                                                    \
        if (t->is_far)                                   \
            tile(t, rows, 1);                            \
        else                                             \
            tile(t, rows, 0);                            \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
static linear_tile_fn *const tiles[LINEAR_TILE] = {tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};

void linear_avx512_bf16(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype == DT_BF16)
        linear_tile_loop(a, x, tiles);
    else
        linear_avx512(a, x);
}
