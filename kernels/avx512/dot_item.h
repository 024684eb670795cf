/* SPDX-License-Identifier: Apache-2.0 */
/* dot_item - operands of the products of attention_dot.h: q, K and V as pairs of bf16. Threads: as
 * ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_ITEM_H
#define QUIRE_KERNELS_AVX512_DOT_ITEM_H
#include "kernels/avx512/vec.h"
#include "kernels/tiling/dot_scratch.h"
#include "kernels/wide/attention_item.h"
#ifdef __AVX512BF16__

#define DOT_BLOCKS (DOT_GROUP / KERN_BLOCK)

struct dot_item {
    const struct item *it;
    struct dot_scratch room;
    float log2_scale; /* of a score, before 2^ */
    uint32_t begin;   /* first position of the item, of all splits */
};

/* Called before the products of an item. */
static void dot_begin(const struct dot_item *d);
/* Scores of the positions of n_block blocks of K (DOT_BLOCKS, or 1 … DOT_BLOCKS where DOT_AT is
 * less), for all rows of the item, to s. */
static void dot_scores(const struct dot_item *d, const char *const k[DOT_BLOCKS], uint32_t n_block,
                       float *s);
/* sum += p V; p and v begin at the same position of a tile, n positions, a multiple of DOT_STEP. */
static void dot_values(const struct dot_item *d, const uint16_t *p, const uint16_t *v, uint32_t n);
/* Add the positions `range` of the tile that begins at `first`: by those two, or in another way. */
static void dot_tile(const struct dot_item *d, uint32_t first, struct pos_range range);

INLINE __m512i dot_pair(__m512 even, __m512 odd) /* of numbers that are exact in bf16 */
{
    return _mm512_or_si512(
        _mm512_srli_epi32(_mm512_castps_si512(even), 16),
        _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32((int)0xffff0000)));
}

/* A block of int8 K as bf16 pairs. */
static void dot_widen_k(uint16_t *to, const char *block, uint32_t head_dim)
{
    const int8_t *k = (const int8_t *)block;
    for (uint32_t d = 0; d < head_dim; d += 2) {
        struct vec even = vec_load_i8(k + (size_t)d * KERN_BLOCK);
        struct vec odd =
            d + 1 < head_dim ? vec_load_i8(k + (size_t)(d + 1) * KERN_BLOCK) : vec_set(0);
        _mm512_storeu_si512(to + (size_t)d * KERN_BLOCK, dot_pair(even.v, odd.v));
    }
}

/* int8: columns c … of the V of an even and an odd position, n of them, as pairs. */
INLINE __m512i dot_v_int8(const char *even, const char *odd, uint32_t c, uint32_t n)
{
    const struct vec zero = vec_set(0);
    struct vec e = even ? vec_load_i8_n((const int8_t *)even + c, n) : zero;
    struct vec o = odd ? vec_load_i8_n((const int8_t *)odd + c, n) : zero;
    return dot_pair(e.v, o.v);
}

/* 32 columns of bf16, of which n exist. */
INLINE __m512i dot_v_bf16(const char *row, uint32_t c, uint32_t n)
{
    const uint16_t *from = (const uint16_t *)(const void *)row + c;
    if (!row)
        return _mm512_setzero_si512();
    return n >= 32 ? _mm512_loadu_si512(from)
                   : _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), from);
}

INLINE const char *dot_row(const struct item *it, uint32_t c, struct pos_range range)
{
    if (c < range.begin || c >= range.end)
        return NULL;
    return item_block(it, it->a->v_cache, c) +
           (size_t)(c % KERN_BLOCK) * it->a->head_dim * kv_element_bytes(it->a->kv_dtype);
}

/* V of two positions as pairs. Two bf16 rows are interleaved within 128 bits, which is cheapest:
 * of 32 columns the first 16 pairs are columns 0-3 8-11 16-19 24-27 (dot_column_order). */
INLINE void dot_pairs(const struct item *it, uint16_t *to, const char *even, const char *odd)
{
    const uint32_t dim = it->a->head_dim;
    for (uint32_t c = 0; it->a->kv_dtype == DT_I8 && c < dim; c += 16)
        _mm512_storeu_si512(to + 2 * (size_t)c,
                            dot_v_int8(even, odd, c, dim - c < 16 ? dim - c : 16));
    for (uint32_t c = 0; it->a->kv_dtype == DT_BF16 && c < dim; c += 32) {
        const __m512i e = dot_v_bf16(even, c, dim - c), o = dot_v_bf16(odd, c, dim - c);
        _mm512_storeu_si512(to + 2 * (size_t)c, _mm512_unpacklo_epi16(e, o));
        _mm512_storeu_si512(to + 2 * (size_t)c + 32, _mm512_unpackhi_epi16(e, o));
    }
}

/* V of the positions from `first` on, n of them, as pairs; those outside the split are zeros.
 * Prefetches K of the next tile. */
static void dot_pairs_of_v(const struct dot_item *d, uint32_t first, uint32_t n,
                           struct pos_range range)
{
    const struct item *it = d->it;
    for (uint32_t c = 0; c < n; c += 2) {
        if (c % KERN_BLOCK == 0)
            item_prefetch(it, it->a->k_cache, first + c + DOT_TILE);
        dot_pairs(it, d->room.v + (size_t)c * d->room.dim, dot_row(it, first + c, range),
                  dot_row(it, first + c + 1, range));
    }
}

/* One of the item's KV heads, counted from its first; `it` is its item. */
INLINE struct dot_item dot_head(const struct dot_item *d, struct item *it, uint32_t head)
{
    const size_t row = (size_t)head * d->it->n_row;
    struct dot_item of = *d;
    *it = *d->it;
    it->kv_head += head;
    it->n_kv = 1;
    of.it = it;
    of.room.s += row * DOT_TILE;
    of.room.p += row * DOT_TILE;
    of.room.q += row * d->room.dim;
    of.room.sum += row * d->room.dim;
    of.room.max += row;
    of.room.total += row;
    of.room.parts += row * partial_stride(it->a->head_dim);
    return of;
}

/* Rows of the scratch that the item uses: whole tiles. */
INLINE uint32_t dot_rows(const struct item *it)
{
    return (it->n_row * it->n_kv + 15) / 16 * 16;
}

static void dot_load_q(const struct dot_item *d)
{
    const struct item *it = d->it;
    for (uint32_t r = 0; r < it->n_row; r++) {
        const float *q = it->a->q + item_at(it, r, it->a->q_stride);
        for (uint32_t c = 0; c < it->a->head_dim; c += 16) {
            uint32_t left = it->a->head_dim - c, n = left < 16 ? left : 16;
            vec_store_bf16_n(d->room.q + (size_t)r * d->room.dim + c, vec_load_n(q + c, n), n);
        }
    }
}

#endif
#endif
