/* SPDX-License-Identifier: Apache-2.0 */
/* dot_few_values - the sums p V of a step of few rows (dot_few.h). Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_FEW_VALUES_H
#define QUIRE_KERNELS_AVX512_DOT_FEW_VALUES_H
#include "kernels/avx512/dot_few_scores.h"
#ifdef __AVX512BF16__

struct few_columns {
    __mmask32 of[FEW_VECS]; /* that exist: 32 of bf16 each, or 16 of int8 */
};

INLINE struct few_columns few_columns(uint32_t left, const bool int8)
{
    struct few_columns m;
    UNROLL
    for (uint32_t j = 0; j < FEW_VECS; j++) {
        const uint32_t width = int8 ? 16 : 32, from = j * width;
        const uint32_t n = left > from ? left - from : 0;
        m.of[j] = (__mmask32)((1ull << (n < width ? n : width)) - 1);
    }
    return m;
}

/* A pair of positions; a row outside of the range has no columns. */
struct few_rows {
    const char *even, *odd;
    struct few_columns columns_even, columns_odd;
    const uint16_t *p;
};

INLINE void few_values_bf16(__m512 sum[][FEW_VECS], const struct few_rows *v, const int rows,
                            const int vecs)
{
    __m512i line[FEW_VECS];
    UNROLL
    for (int j = 0; j < vecs; j += 2) {
        const __m512i e = _mm512_maskz_loadu_epi16(v->columns_even.of[j / 2], v->even + 32 * j);
        const __m512i o = _mm512_maskz_loadu_epi16(v->columns_odd.of[j / 2], v->odd + 32 * j);
        line[j] = _mm512_unpacklo_epi16(e, o);
        line[j + 1] = _mm512_unpackhi_epi16(e, o);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        const __m512bh p = (__m512bh)few_pair(v->p, DOT_TILE, r);
        UNROLL
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm512_dpbf16_ps(sum[r][j], (__m512bh)line[j], p);
    }
}

INLINE __m512 few_widen(const char *row, __mmask32 columns, int j)
{
    return vec_widen_i8(_mm_maskz_loadu_epi8((__mmask16)columns, row + 16 * j)).v;
}

INLINE void few_values_int8(__m512 sum[][FEW_VECS], const struct few_rows *v, const int rows,
                            const int vecs)
{
    UNROLL
    for (int j = 0; j < vecs; j++) {
        const __m512 e = few_widen(v->even, v->columns_even.of[j], j);
        const __m512 o = few_widen(v->odd, v->columns_odd.of[j], j);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const __m512i p = few_pair(v->p, DOT_TILE, r);
            sum[r][j] = _mm512_fmadd_ps(o, few_odd(p), sum[r][j]);
            sum[r][j] = _mm512_fmadd_ps(e, few_even(p), sum[r][j]);
        }
    }
}

struct few_form { /* constants where they are inlined */
    int rows, vecs;
    bool int8;
};

struct few_block { /* of V, from the first column of the sums on */
    const char *v, *ahead;
    const uint16_t *p;
    uint32_t begin, end; /* its positions that count; whole: 0 to KERN_BLOCK */
    uint32_t dim, left;  /* columns of a row, from the first of the sums on */
};

INLINE void few_block(__m512 sum[][FEW_VECS], const struct few_block *b, const struct few_form f,
                      const bool whole)
{
    const size_t row = b->dim * (f.int8 ? 1u : 2u);
    const uint32_t lines = (uint32_t)f.vecs / (f.int8 ? 2 : 1); /* of a pair */
    const struct few_columns all = few_columns(b->left, f.int8), none = {{0}};
    const uint32_t end = whole ? KERN_BLOCK : b->end;
    for (uint32_t i = whole ? 0 : b->begin / 2 * 2; i < end; i += 2) {
        UNROLL
        for (uint32_t j = 0; j < lines; j++)
            few_prefetch(b->ahead + (size_t)(i / 2 * lines + j) * 64);
        const struct few_rows rows = {
            .even = b->v + i * row,
            .odd = b->v + (i + 1) * row,
            .columns_even = whole || i >= b->begin ? all : none,
            .columns_odd = whole || i + 1 < end ? all : none,
            .p = b->p + i,
        };
        if (f.int8)
            few_values_int8(sum, &rows, f.rows, f.vecs);
        else
            few_values_bf16(sum, &rows, f.rows, f.vecs);
    }
}

/* Sums of columns c … */
INLINE void few_values_at(const struct few_step *s, uint32_t c, const struct few_form f)
{
    const size_t stride = partial_dim(s->dim), element = f.int8 ? 1 : 2;
    __m512 sum[FEW_SUMS][FEW_VECS];
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.vecs; j++)
        sum[r][j] = _mm512_loadu_ps(s->out + (size_t)r * stride + c + 16 * j);
    for (uint32_t j = 0, at = s->first; j < s->n_block; j++, at += KERN_BLOCK) {
        const struct pos_range of =
            pos_range_cut(s->range, (struct pos_range){at, at + KERN_BLOCK});
        const struct few_block b = {
            .v = s->block[j] + c * element,
            .ahead = s->ahead[j] + c * element * KERN_BLOCK,
            .p = s->w + j * KERN_BLOCK,
            .begin = of.begin - at,
            .end = of.end - at,
            .dim = s->dim,
            .left = s->dim - c,
        };
        if (of.begin >= of.end)
            continue;
        if (of.end - of.begin == KERN_BLOCK)
            few_block(sum, &b, f, true);
        else
            few_block(sum, &b, f, false);
    }
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.vecs; j++)
        _mm512_storeu_ps(s->out + (size_t)r * stride + c + 16 * j, sum[r][j]);
}

INLINE void few_values(const struct few_step *s, const int rows, const bool int8)
{
    uint32_t c = 0;
    for (; c + 64 <= partial_dim(s->dim); c += 64)
        few_values_at(s, c, (struct few_form){rows, 4, int8});
    if (c < s->dim)
        few_values_at(s, c, (struct few_form){rows, 2, int8});
    for (uint32_t j = 0; int8 && j < s->n_block; j++)
        few_prefetch(s->ahead[j] + kv_scales_at(s->dim));
}

#endif
#endif
