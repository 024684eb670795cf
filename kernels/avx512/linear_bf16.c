/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W by vdpbf16ps, 32 multiply-adds an instruction; everything else
 * is linear_avx512. Formula and order: ref/linear.c. The instruction ignores MXCSR. */
#include <immintrin.h>
#include "kernels/linear_walk.h"
#include "kernels/unroll.h"
#include "kernels/variants.h"

/* x[r][k], x[r][k+1] in every lane; the second is 0 when the row ends before it. */
INLINE __m512bh pair(const struct linear_tile *t, int r, uint32_t k, int both)
{
    const char *p = (const char *)t->x + r * t->x_bytes + 2 * (size_t)k;
    uint32_t bits = 0;
    memcpy(&bits, p, both ? 4 : 2);
    return (__m512bh)_mm512_set1_epi32((int)bits);
}

INLINE void step(__m512 sum[][4], const int rows, const struct linear_tile *t, uint32_t k, int both)
{
    const __m512i *w = (const __m512i *)t->w + (size_t)k / 2 * 4;
    UNROLL
    for (int r = 0; r < rows; r++) {
        __m512bh b = pair(t, r, k, both);
        UNROLL
        for (int j = 0; j < 4; j++)
            sum[r][j] = _mm512_dpbf16_ps(sum[r][j], (__m512bh)w[j], b);
    }
}

INLINE void tile(const struct linear_tile *t, const int rows)
{
    __m512 sum[LINEAR_TILE][4];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        sum[r][j] =
            t->first ? _mm512_setzero_ps() : _mm512_load_ps(t->sum + r * KERN_PANEL + 16 * j);
    uint32_t k = 0;
    for (; k + 1 < t->n_k; k += 2) {
        linear_ahead(t, (size_t)k * 128, 4);
        step(sum, rows, t, k, 1);
    }
    if (k < t->n_k)
        step(sum, rows, t, k, 0);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_store_ps(t->sum + r * KERN_PANEL + 16 * j, sum[r][j]);
}

#define TILE(rows)                                       \
    static void tile_##rows(const struct linear_tile *t) \
    {                                                    \
        tile(t, rows);                                   \
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
        linear_walk(a, x, tiles);
    else
        linear_avx512(a, x);
}
