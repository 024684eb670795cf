/* SPDX-License-Identifier: Apache-2.0 */
/* train_tile - tiles of rows of one head in scratch, for attention_train and attention_grad: copied
 * with the columns past head_dim and the rows past the segment as 0, so that tile_product needs no
 * masks. `pairs`: bf16, two in a cell (tile_product.h). Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_TRAIN_TILE_H
#define QUIRE_KERNELS_WIDE_TRAIN_TILE_H
#include <float.h>
#include <math.h>
#include "kernels/tiling/train_tiles.h"
#include "kernels/wide/exp.h"
#include "kernels/wide/tile_product.h"
#ifdef VEC_SUMS

#define TRAIN_VECS (KERN_TRAIN_TILE / 16) /* of a row of scores */

struct train_rows { /* of one head */
    const float *p;
    size_t stride;
    uint32_t n, n_col;
};

INLINE uint32_t train_lanes(uint32_t d, uint32_t head_dim)
{
    return head_dim - d < 16 ? head_dim - d : 16;
}

/* dst: [KERN_TRAIN_TILE][train_dim]. */
INLINE void train_copy(float *dst, const struct train_rows *from)
{
    const uint32_t dim = train_dim(from->n_col);
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r++)
        for (uint32_t d = 0; d < dim; d += 16) {
            struct vec v = vec_set(0);
            if (r < from->n)
                v = vec_load_n(from->p + r * from->stride + d, train_lanes(d, from->n_col));
            vec_store(dst + (size_t)r * dim + d, v);
        }
}

/* dst: [train_dim][KERN_TRAIN_TILE], transposed. */
INLINE void train_copy_transposed(float *dst, const struct train_rows *from)
{
    const uint32_t dim = train_dim(from->n_col);
    struct vec v[16];
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r += 16)
        for (uint32_t d = 0; d < dim; d += 16) {
            for (uint32_t l = 0; l < 16; l++)
                v[l] = r + l < from->n ? vec_load_n(from->p + (r + l) * from->stride + d,
                                                    train_lanes(d, from->n_col))
                                       : vec_set(0);
            vec_transpose(v);
            for (uint32_t l = 0; l < 16; l++)
                vec_store(dst + (size_t)(d + l) * KERN_TRAIN_TILE + r, v[l]);
        }
}

/* Factors of ref/train_score.h: 16 to p, and pairs of even and odd. */
#ifdef __AVX512BF16__
INLINE void train_store_factors(float *p, struct vec v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(v.v));
}

INLINE struct vec train_pair_factors(struct vec even, struct vec odd)
{
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at =
        _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v); /* even in the low half */
    return vec_of(_mm512_castsi512_ps(_mm512_permutexvar_epi16(at, both)));
}
#else
INLINE struct vec train_flushed(struct vec v)
{
    return vec_if_above(vec_set(FLT_MIN), vec_abs(v), vec_sign_of(vec_set(0), v), v);
}

INLINE void train_store_factors(float *p, struct vec v)
{
    vec_store_bf16_n((uint16_t *)(void *)p, train_flushed(v), 16);
}

INLINE struct vec train_pair_factors(struct vec even, struct vec odd)
{
    return vec_bf16_pairs(train_flushed(even), train_flushed(odd));
}
#endif

/* bf16, two in a cell. dst: [KERN_TRAIN_TILE][train_pair_dim / 2], pairs of columns. */
INLINE void train_copy_pairs(float *dst, const struct train_rows *from)
{
    const uint32_t dim = train_pair_dim(from->n_col);
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r++)
        for (uint32_t d = 0; d < dim; d += 16) {
            struct vec v = vec_set(0);
            if (r < from->n && d < from->n_col)
                v = vec_load_n(from->p + r * from->stride + d, train_lanes(d, from->n_col));
            train_store_factors(dst + ((size_t)r * dim + d) / 2, v);
        }
}

/* dst: [train_pair_dim / 2][KERN_TRAIN_TILE], transposed. room: as train_copy_pairs. */
INLINE void train_transpose_pairs(float *dst, float *room, const struct train_rows *from)
{
    const uint32_t n_cell = train_pair_dim(from->n_col) / 2;
    struct vec v[16];
    train_copy_pairs(room, from);
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r += 16)
        for (uint32_t d = 0; d < n_cell; d += 16) {
            for (uint32_t l = 0; l < 16; l++)
                v[l] = vec_load(room + (size_t)(r + l) * n_cell + d);
            vec_transpose(v);
            for (uint32_t l = 0; l < 16; l++)
                vec_store(dst + (size_t)(d + l) * KERN_TRAIN_TILE + r, v[l]);
        }
}

/* dst: [KERN_TRAIN_TILE / 2][train_dim], pairs of rows. */
INLINE void train_pair_rows(float *dst, const struct train_rows *from)
{
    const uint32_t dim = train_dim(from->n_col);
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r += 2)
        for (uint32_t d = 0; d < dim; d += 16) {
            const float *p = from->p + r * from->stride + d;
            const uint32_t n = train_lanes(d, from->n_col);
            const struct vec a = r < from->n ? vec_load_n(p, n) : vec_set(0);
            const struct vec b = r + 1 < from->n ? vec_load_n(p + from->stride, n) : vec_set(0);
            vec_store(dst + (size_t)r / 2 * dim + d, train_pair_factors(a, b));
        }
}

/* The first n rows of src [KERN_TRAIN_TILE][train_dim] back to memory, times by[r]. */
INLINE void train_write(float *to, size_t stride, const float *src, const struct train_rows *shape,
                        const float *by)
{
    const uint32_t dim = train_dim(shape->n_col);
    for (uint32_t r = 0; r < shape->n; r++)
        for (uint32_t d = 0; d < shape->n_col; d += 16) {
            struct vec v = vec_load(src + (size_t)r * dim + d);
            if (by)
                v = vec_mul(v, vec_set(by[r]));
            vec_store_n(to + r * stride + d, v, train_lanes(d, shape->n_col));
        }
}

/* Rows of a tile of queries that a product takes: whole blocks. */
INLINE uint32_t train_blocks(uint32_t n)
{
    return (n + PRODUCT_ROWS - 1) / PRODUCT_ROWS * PRODUCT_ROWS;
}

/* Lane l of vec j of a row of scores is key 16 j + l; only those that are visible, else other. */
INLINE struct vec train_only(struct vec v, struct vec other, int j, struct range visible)
{
    const size_t at = 16 * (size_t)j;
    if (visible.begin <= at && visible.end >= at + 16)
        return v;
    const size_t low = visible.begin > at ? visible.begin - at : 0;
    const size_t high = visible.end > at ? visible.end - at : 0;
    v = vec_first(high < 16 ? (uint32_t)high : 16, v, other);
    return vec_first(low < 16 ? (uint32_t)low : 16, other, v);
}

/* Sums q·k of a head to scores. distance: of the first lane's key from the row, in rows. */
INLINE struct vec train_scaled(const struct attention_train_args *a, struct vec sum, uint32_t head,
                               float distance)
{
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct vec cap = vec_set(a->soft_cap);
    struct vec s = vec_mul(sum, vec_set(a->scale));
    if (a->slopes)
        s = vec_fma(vec_set(-a->slopes[head]), vec_sub(vec_set(distance), vec_load(lanes)), s);
    return a->soft_cap > 0 ? vec_mul(cap, vec_tanh(vec_div(s, cap))) : s;
}

/* s = rows of a [n][dim] times the transposed tile b. */
INLINE void train_scores(float *s, const float *a, const float *b, const struct train_rows *rows,
                         const bool pairs)
{
    const uint32_t dim = rows->n_col;
    const struct tile_product p = {
        .c = s,
        .a = a,
        .b = b,
        .c_stride = KERN_TRAIN_TILE,
        .a_row = pairs ? train_pair_dim(dim) / 2 : train_dim(dim),
        .a_k = 1,
        .b_stride = KERN_TRAIN_TILE,
        .n_row = train_blocks(rows->n),
        .n_col = KERN_TRAIN_TILE,
        .n_k = pairs ? (dim + 1) / 2 : dim,
    };
    product_of_cells(&p, pairs);
}

#endif
#endif
