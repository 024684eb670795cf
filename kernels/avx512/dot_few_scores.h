/* SPDX-License-Identifier: Apache-2.0 */
/* dot_few_scores - a step of few rows (dot_few.h), and its scores q·K. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_FEW_SCORES_H
#define QUIRE_KERNELS_AVX512_DOT_FEW_SCORES_H
#include "kernels/avx512/dot_item.h"
#ifdef __AVX512BF16__

#define FEW_ROWS   DOT_KV_ROWS /* two groups of FEW_SUMS; with more, pairs in memory cost less */
#define FEW_SUMS   6           /* rows x 4 vecs of sums; 8 registers stay for operands */
#define FEW_VECS   4
#define FEW_BLOCKS 4u    /* of a step, FEW_VECS */
#define FEW_AHEAD  8192u /* bytes between what is read and what is prefetched */

struct few_step {
    const char *block[FEW_BLOCKS], *ahead[FEW_BLOCKS]; /* to read, to prefetch */
    uint32_t n_block;                                  /* FEW_BLOCKS; 1 only with one row */
    uint32_t first;                                    /* position of block[0] */
    struct pos_range range;                            /* positions that count */
    const uint16_t *w;                                 /* q, or p of the positions from first on */
    float *out;                                        /* scores, or sums */
    uint32_t dim;                                      /* head_dim */
};

INLINE void few_prefetch(const char *p)
{
    __builtin_prefetch(p);
}

/* Row r's two bf16 of a pair in all lanes. */
INLINE __m512i few_pair(const uint16_t *w, size_t stride, int r)
{
    uint32_t pair;
    memcpy(&pair, w + (size_t)r * stride, sizeof pair);
    return _mm512_set1_epi32((int)pair);
}

INLINE __m512 few_even(__m512i pair)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}

INLINE __m512 few_odd(__m512i pair)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE void few_scores_bf16(const struct few_step *s, __m512 sum[][FEW_VECS], const int rows,
                            const int vecs)
{
    const size_t stride = partial_dim(s->dim);
    for (uint32_t i = 0; i < (s->dim + 1) / 2; i++) {
        __m512i k[FEW_VECS];
        UNROLL
        for (int j = 0; j < vecs; j++) {
            few_prefetch(s->ahead[j] + 64 * (size_t)i);
            k[j] = _mm512_loadu_si512(s->block[j] + 64 * (size_t)i);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512bh q = (__m512bh)few_pair(s->w + 2 * (size_t)i, stride, r);
            UNROLL
            for (int j = 0; j < vecs; j++)
                sum[r][j] = _mm512_dpbf16_ps(sum[r][j], (__m512bh)k[j], q);
        }
    }
}

INLINE void few_score_int8(const struct few_step *s, __m512 sum[][FEW_VECS], const int rows,
                           const int vecs, uint32_t d)
{
    __m512 k[FEW_VECS];
    UNROLL
    for (int j = 0; j < vecs; j++)
        k[j] = vec_load_i8((const int8_t *)s->block[j] + (size_t)d * KERN_BLOCK).v;
    UNROLL
    for (int r = 0; r < rows; r++) {
        const __m512i pair = few_pair(s->w + d / 2 * 2, partial_dim(s->dim), r);
        const __m512 q = d % 2 ? few_odd(pair) : few_even(pair);
        UNROLL
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm512_fmadd_ps(k[j], q, sum[r][j]);
    }
}

INLINE void few_scores_int8(const struct few_step *s, __m512 sum[][FEW_VECS], const int rows,
                            const int vecs)
{
    uint32_t d = 0;
    for (; d + 1 < s->dim; d += 2) {
        UNROLL
        for (int j = 0; j < vecs; j++)
            few_prefetch(s->ahead[j] + d / 4 * 64); /* four d are a line */
        few_score_int8(s, sum, rows, vecs, d + 1);
        few_score_int8(s, sum, rows, vecs, d);
    }
    if (d < s->dim)
        few_score_int8(s, sum, rows, vecs, d);
    UNROLL
    for (int j = 0; j < vecs; j++)
        few_prefetch(s->ahead[j] + kv_scales_at(s->dim));
}

/* vecs: of s->n_block blocks */
INLINE void few_scores(const struct few_step *s, const int rows, const int vecs, const bool int8)
{
    __m512 sum[FEW_SUMS][FEW_VECS];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < vecs; j++)
        sum[r][j] = _mm512_setzero_ps();
    if (int8)
        few_scores_int8(s, sum, rows, vecs);
    else
        few_scores_bf16(s, sum, rows, vecs);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < vecs; j++)
        _mm512_storeu_ps(s->out + (size_t)r * DOT_TILE + 16 * j, sum[r][j]);
}

#endif
#endif
