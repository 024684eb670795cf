/* SPDX-License-Identifier: Apache-2.0 */
/* tile_product - C = A B, or C + A B, of small matrices in scratch: what attention_train and
 * attention_grad are made of.
 *
 * C[r,j] = sum_k A[r,k] B[k,j], one accumulator per element from +0 (or from C), fused
 * multiply-adds over k ascending. Lanes are 16 j, A is broadcast; 6 rows x 4 vecs where the
 * registers hold them (VEC_SUMS), else 6 x 1. A has any strides, so that its transpose needs no
 * copy. pair_product is the same of bf16: a cell of A or B is two of them, neighbours along k, the
 * even one in the low half; the arithmetic is that of vdpbf16ps (ref/train_score.h), which is used
 * where the compiler may. Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_TILE_PRODUCT_H
#define QUIRE_KERNELS_WIDE_TILE_PRODUCT_H
#include <stdbool.h>
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define PRODUCT_ROWS  6u
#define PRODUCT_VECS  (VEC_SUMS / 6)
#define PRODUCT_FLUSH 0x8040u /* MXCSR: FTZ and DAZ */

struct tile_product {
    float *c;
    const float *a, *b;                    /* pair_product: cells */
    size_t c_stride, a_row, a_k, b_stride; /* elements, cells */
    uint32_t n_row, n_col, n_k;            /* multiples of PRODUCT_ROWS, of 16, of 1 */
    bool add;                              /* to what C is */
};

/* sum + x b, of bf16 the odd halves before the even ones. */
INLINE struct vec product_add(struct vec x, struct vec b, struct vec sum, const bool pairs)
{
    if (!pairs)
        return vec_fma(x, b, sum);
#ifdef __AVX512BF16__
    return vec_of(_mm512_dpbf16_ps(sum.v, (__m512bh)b.v, (__m512bh)x.v));
#else
    sum = vec_fma(vec_odd_halves(x), vec_odd_halves(b), sum);
    return vec_fma(vec_even_halves(x), vec_even_halves(b), sum);
#endif
}

/* Rows row … row + 5, columns col … col + 16 n_vec - 1. */
INLINE void product_block(const struct tile_product *p, uint32_t row, uint32_t col, const int n_vec,
                          const bool pairs)
{
    struct vec sum[PRODUCT_ROWS][4], b[4];
    float *c = p->c + row * p->c_stride + col;
    const float *a = p->a + row * p->a_row, *bk = p->b + col;
    UNROLL
    for (uint32_t r = 0; r < PRODUCT_ROWS; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        sum[r][j] = p->add ? vec_load(c + r * p->c_stride + 16 * j) : vec_set(0);
    for (uint32_t k = 0; k < p->n_k; k++, a += p->a_k, bk += p->b_stride) {
        UNROLL
        for (int j = 0; j < n_vec; j++)
            b[j] = vec_load(bk + 16 * j);
        UNROLL
        for (uint32_t r = 0; r < PRODUCT_ROWS; r++) {
            const struct vec x = vec_set(a[r * p->a_row]);
            UNROLL
            for (int j = 0; j < n_vec; j++)
                sum[r][j] = product_add(x, b[j], sum[r][j], pairs);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < PRODUCT_ROWS; r++)
        UNROLL
    for (int j = 0; j < n_vec; j++)
        vec_store(c + r * p->c_stride + 16 * j, sum[r][j]);
}

INLINE void product_blocks(const struct tile_product *p, const bool pairs)
{
    for (uint32_t col = 0, n; col < p->n_col; col += 16 * n) {
        n = (p->n_col - col) / 16;
        n = n < PRODUCT_VECS ? n : PRODUCT_VECS;
        for (uint32_t row = 0; row < p->n_row; row += PRODUCT_ROWS)
            switch (n) {
#if PRODUCT_VECS >= 4
            case 4:
                product_block(p, row, col, 4, pairs);
                break;
            case 3:
                product_block(p, row, col, 3, pairs);
                break;
            case 2:
                product_block(p, row, col, 2, pairs);
                break;
#endif
            default:
                product_block(p, row, col, 1, pairs);
                break;
            }
    }
}

static void tile_product(const struct tile_product *p)
{
    product_blocks(p, false);
}

#ifdef __AVX512BF16__
static void pair_product(const struct tile_product *p)
{
    product_blocks(p, true);
}
#else
/* A real call, so that none of its arithmetic can move past the switch of MXCSR. */
static __attribute__((noinline)) void pair_blocks(const struct tile_product *p)
{
    product_blocks(p, true);
}

static void pair_product(const struct tile_product *p)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | PRODUCT_FLUSH);
    pair_blocks(p);
    _mm_setcsr(before);
}
#endif

/* pairs: a constant where it is inlined. */
INLINE void product_of_cells(const struct tile_product *p, const bool pairs)
{
    if (pairs)
        pair_product(p);
    else
        tile_product(p);
}

#endif
#endif
