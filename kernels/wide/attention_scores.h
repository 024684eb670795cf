/* SPDX-License-Identifier: Apache-2.0 */
/* attention_scores - s = scale q·K for all rows of an item, then p = exp(s - max) row by row. See
 * wide/attention.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_SCORES_H
#define QUIRE_KERNELS_WIDE_ATTENTION_SCORES_H
#include <math.h>
#include "kernels/wide/attention_item.h"
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

#define SCORE_BLOCKS 2 /* together where registers allow: a broadcast serves twice */
#define SCORE_ROWS   (VEC_SUMS >= 24 ? VEC_SUMS / 2 : VEC_SUMS)

struct score_tile {
    const struct item *it;
    const char *k[2]; /* one or two blocks of K */
    float *out[2];    /* their scores, row 0 */
    uint32_t row;     /* first row */
};

struct score_form { /* constants where they are inlined */
    int rows, n_block;
    enum dtype type;
};

/* Vec d of block b; `odd` says which half of a bf16 pair d is. */
INLINE struct vec score_k(const struct score_tile *t, const enum dtype type, uint32_t d, int odd,
                          int b)
{
    const void *k = t->k[b];
    const uint16_t *pairs = (const uint16_t *)k + (size_t)(d - (uint32_t)odd) * KERN_BLOCK;
    if (type == DT_I8)
        return vec_load_i8((const int8_t *)k + (size_t)d * KERN_BLOCK);
    if (type == DT_F32)
        return vec_load((const float *)k + (size_t)d * KERN_BLOCK);
    return odd ? vec_load_odd(pairs) : vec_load_even(pairs);
}

INLINE void score_step(struct vec sum[SCORE_ROWS][2], const struct score_tile *t,
                       struct score_form f, uint32_t d, int odd)
{
    const float *q = t->it->q + (size_t)d * ROWS + t->row;
    struct vec k[2];
    UNROLL
    for (int b = 0; b < f.n_block; b++)
        k[b] = score_k(t, f.type, d, odd, b);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec x = vec_set(q[r]);
        UNROLL
        for (int b = 0; b < f.n_block; b++)
            vec_add_product(&sum[r][b], x, k[b]);
    }
}

/* Sums times the scales of K. */
INLINE void score_int8(struct vec sum[SCORE_ROWS][2], const struct score_tile *t,
                       struct score_form f)
{
    UNROLL
    for (int b = 0; b < f.n_block; b++) {
        const struct vec k = vec_load(item_scales(t->it, t->k[b]));
        UNROLL
        for (int r = 0; r < f.rows; r++)
            sum[r][b] = vec_mul(sum[r][b], k);
    }
}

INLINE void score_add(const struct score_tile *t, struct score_form f)
{
    struct vec sum[SCORE_ROWS][2];
    const struct vec scale = vec_set(t->it->a->scale);
    const uint32_t dim = t->it->a->head_dim;
    uint32_t d = 0;
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int b = 0; b < f.n_block; b++)
        sum[r][b] = vec_set(0);
    for (; d + 1 < dim; d += 2) {
        score_step(sum, t, f, d, 0);
        score_step(sum, t, f, d + 1, 1);
    }
    if (d < dim)
        score_step(sum, t, f, d, 0);
    if (f.type == DT_I8)
        score_int8(sum, t, f);
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int b = 0; b < f.n_block; b++)
        vec_store(t->out[b] + (t->row + (uint32_t)r) * KERN_BLOCK, vec_mul(sum[r][b], scale));
}

/* Both blocks at once, or one after the other. */
INLINE void score_typed(const struct score_tile *t, const int rows, int n_block,
                        const enum dtype type)
{
    if (n_block == SCORE_BLOCKS && rows * SCORE_BLOCKS <= VEC_SUMS) {
        score_add(t, (struct score_form){rows, SCORE_BLOCKS, type});
        return;
    }
    for (int b = 0; b < n_block; b++) {
        const struct score_tile one = {t->it, {t->k[b]}, {t->out[b]}, t->row};
        score_add(&one, (struct score_form){rows, 1, type});
    }
}

INLINE void score_rows(const struct score_tile *t, const int rows, int n_block)
{
    const enum dtype type = t->it->a->kv_dtype;
    if (type == DT_BF16)
        score_typed(t, rows, n_block, DT_BF16);
    else if (type == DT_I8)
        score_typed(t, rows, n_block, DT_I8);
    else
        score_typed(t, rows, n_block, DT_F32);
}

/* A tile may compute more rows than remain: q and s have room for ROWS, and the extra results are
 * not read. */
static void score_blocks(const struct item *it, uint32_t c, int n_block)
{
    struct score_tile t = {.it = it};
    for (int b = 0; b < n_block; b++) {
        uint32_t at = c + (uint32_t)b * KERN_BLOCK;
        t.k[b] = item_block(it, it->a->k_cache, at);
        t.out[b] = item_scores(it, at);
        item_prefetch(it, it->a->k_cache, at + SCORE_BLOCKS * KERN_BLOCK);
        if (it->a->kv_dtype == DT_I8) /* softmax_row applies the scales line by line */
            __builtin_prefetch(item_scales(it, item_block(it, it->a->v_cache, at)), 0, 2);
    }
    for (; t.row < it->n_row; t.row += SCORE_ROWS) {
        uint32_t left = it->n_row - t.row;
        if (left == 1)
            score_rows(&t, 1, n_block);
        else if (left <= SCORE_ROWS / 3)
            score_rows(&t, SCORE_ROWS / 3, n_block);
        else if (left <= SCORE_ROWS * 2 / 3)
            score_rows(&t, SCORE_ROWS * 2 / 3, n_block);
        else
            score_rows(&t, SCORE_ROWS, n_block);
    }
}

/* The lanes of block c within the range; the others are taken from `other`. */
INLINE struct vec only_range(struct vec v, struct vec other, uint32_t c, struct pos_range s)
{
    if (c >= s.begin && c + KERN_BLOCK <= s.end)
        return v;
    uint32_t high = s.end - c < KERN_BLOCK ? s.end - c : KERN_BLOCK;
    uint32_t low = s.begin > c ? s.begin - c : 0;
    return vec_first(low, other, vec_first(high, v, other));
}

/* int8: p of row r times the scales of V. */
static void scale_row(const struct item *it, uint32_t r, struct pos_range range)
{
    for (uint32_t c = range.begin / KERN_BLOCK * KERN_BLOCK; c < range.end; c += KERN_BLOCK) {
        float *p = item_scores(it, c) + r * KERN_BLOCK;
        const float *scales = item_scales(it, item_block(it, it->a->v_cache, c));
        vec_store(p, vec_mul(vec_load(p), vec_load(scales)));
    }
}

/* s -> p (int8: times the scales of V) for row r; its max and total go to its partial result. */
INLINE void softmax_row(const struct item *it, uint32_t r)
{
    struct pos_range range = item_range(it, r);
    const uint32_t first = range.begin / KERN_BLOCK * KERN_BLOCK;
    const struct vec least = vec_set(-INFINITY), zero = vec_set(0), cap = vec_set(it->a->soft_cap);
    struct vec max = least, sum = zero;
    if (it->a->slopes)
        slope_row(it, r, range);
    for (uint32_t c = first; c < range.end; c += KERN_BLOCK) {
        float *p = item_scores(it, c) + r * KERN_BLOCK;
        struct vec v = vec_load(p);
        if (it->a->soft_cap > 0) {
            v = vec_mul(cap, vec_tanh(vec_div(v, cap)));
            vec_store(p, v);
        }
        max = vec_max(only_range(v, least, c, range), max);
    }
    const struct vec m = vec_set(vec_fold_max(max));
    for (uint32_t c = first; c < range.end; c += KERN_BLOCK) {
        float *p = item_scores(it, c) + r * KERN_BLOCK;
        struct vec v = only_range(vec_exp(vec_sub(vec_load(p), m)), zero, c, range);
        sum = vec_add(sum, v);
        vec_store(p, v);
    }
    if (it->a->kv_dtype == DT_I8)
        scale_row(it, r, range);
    it->sum[r * it->sum_stride + partial_dim(it->a->head_dim)] = vec_fold_max(max);
    it->sum[r * it->sum_stride + partial_dim(it->a->head_dim) + 1] = vec_fold_add(sum);
}

#endif
#endif
