/* SPDX-License-Identifier: Apache-2.0 */
/* y = x W^T with f32 multiply-adds; formula and order: ref/linear.c.
 *
 * A tile holds rows x 4 vectors of sums, 16 outputs a vector, each lane one accumulator. bf16 weights come as pairs
 * along K in 32 bits and are widened exactly: << 16 is the even element, & 0xffff0000 the odd one. With bf16 x the
 * odd element goes first and subnormals are flushed (MXCSR), which makes it the arithmetic of vdpbf16ps. */
#include <immintrin.h>
#include "kernels/linear_walk.h"
#include "kernels/unroll.h"
#include "kernels/variants.h"

#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */
#define AHEAD           2048    /* bytes; see kernels/README.md, "prefetch" */

enum kind { W_F32, W_F16, W_BF16, BOTH_BF16 };

struct sums {
    __m512 v[LINEAR_TILE][4];
};

INLINE void add_products(struct sums *s, const int rows, const float *x, size_t x_step,
                         const __m512 w[4])
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        __m512 b = _mm512_set1_ps(x[r * x_step]);
        UNROLL
        for (int j = 0; j < 4; j++)
            s->v[r][j] = _mm512_fmadd_ps(b, w[j], s->v[r][j]);
    }
}

INLINE void step_single(struct sums *s, const int rows, enum kind kind, const struct linear_tile *t,
                        uint32_t k)
{
    const char *w = (const char *)t->w + (size_t)k * KERN_PANEL * (kind == W_F32 ? 4 : 2);
    __m512 v[4];
    UNROLL
    for (int j = 0; j < 4; j++)
        v[j] = kind == W_F32
                   ? _mm512_load_ps((const float *)(const void *)w + 16 * j)
                   : _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)w + j));
    add_products(s, rows, (const float *)t->x + k, t->x_bytes / 4, v);
}

/* k is even; with `both` there is an element k + 1. */
INLINE void step_pair(struct sums *s, const int rows, const struct linear_tile *t, uint32_t k,
                      int both)
{
    const __m512i *w = (const __m512i *)t->w + (size_t)k / 2 * 4;
    __m512 even[4], odd[4];
    UNROLL
    for (int j = 0; j < 4; j++) {
        even[j] = _mm512_castsi512_ps(_mm512_slli_epi32(w[j], 16));
        odd[j] = _mm512_castsi512_ps(_mm512_and_si512(w[j], _mm512_set1_epi32((int)0xffff0000)));
    }
    add_products(s, rows, (const float *)t->x + k, t->x_bytes / 4, even);
    if (both)
        add_products(s, rows, (const float *)t->x + k + 1, t->x_bytes / 4, odd);
}

/* As vdpbf16ps. */
INLINE void step_dot(struct sums *s, const int rows, const struct linear_tile *t, uint32_t k,
                     int both)
{
    const __m512i *w = (const __m512i *)t->w + (size_t)k / 2 * 4;
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    UNROLL
    for (int r = 0; r < rows; r++) {
        const uint16_t *x =
            (const uint16_t *)(const void *)((const char *)t->x + r * t->x_bytes) + k;
        __m512 even = _mm512_set1_ps(bf16_to_f32(x[0])),
               odd = _mm512_set1_ps(both ? bf16_to_f32(x[1]) : 0);
        UNROLL
        for (int j = 0; j < 4; j++) {
            s->v[r][j] =
                _mm512_fmadd_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(w[j], high)), s->v[r][j]);
            s->v[r][j] =
                _mm512_fmadd_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(w[j], 16)), s->v[r][j]);
        }
    }
}

INLINE void ahead(const struct linear_tile *t, uint32_t k, int lines, size_t bytes_per_k)
{
    const char *p = (const char *)t->w + k * bytes_per_k + AHEAD;
    UNROLL
    for (int j = 0; j < lines; j++)
        _mm_prefetch(p + 64 * j, _MM_HINT_T0);
}

INLINE void tile(const struct linear_tile *t, const int rows, const enum kind kind)
{
    struct sums s;
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s.v[r][j] =
            t->first ? _mm512_setzero_ps() : _mm512_load_ps(t->sum + r * KERN_PANEL + 16 * j);
    uint32_t k = 0;
    if (kind == W_F32 || kind == W_F16) {
        for (; k < t->n_k; k++) {
            ahead(t, k, kind == W_F32 ? 4 : 2, kind == W_F32 ? 256 : 128);
            step_single(&s, rows, kind, t, k);
        }
    } else {
        for (; k + 1 < t->n_k; k += 2) {
            ahead(t, k, 4, 128);
            if (kind == W_BF16)
                step_pair(&s, rows, t, k, 1);
            else
                step_dot(&s, rows, t, k, 1);
        }
        if (k < t->n_k && kind == W_BF16)
            step_pair(&s, rows, t, k, 0);
        if (k < t->n_k && kind == BOTH_BF16)
            step_dot(&s, rows, t, k, 0);
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_store_ps(t->sum + r * KERN_PANEL + 16 * j, s.v[r][j]);
}

/* Each kind for 1 to 6 rows, as functions and as the table linear_walk takes. */
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

void linear_avx512(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype == DT_BF16) {
        unsigned before = _mm_getcsr();
        _mm_setcsr(before | FLUSH_SUBNORMAL);
        linear_walk(a, x, tiles_dot);
        _mm_setcsr(before);
    } else if (a->w.dtype == DT_F32) {
        linear_walk(a, x, tiles_f32);
    } else if (a->w.dtype == DT_F16) {
        linear_walk(a, x, tiles_f16);
    } else {
        linear_walk(a, x, tiles_bf16);
    }
}
