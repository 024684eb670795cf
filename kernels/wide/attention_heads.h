/* SPDX-License-Identifier: Apache-2.0 */
/* attention_heads - an item of one row in each of several KV heads, which lie side by side in a
 * block: decoding without grouped queries, which is bound by the reading of K and V. See
 * wide/attention.h.
 *
 * A split's K is read block by block, in each block head by head, and so is its V: memory in
 * order, which the hardware's prefetch continues. Each step also prefetches as many lines of a
 * head that is read soon, from K to V and from V to the next split's K, so that neither memory
 * waits for the arithmetic nor the arithmetic for a burst of requests. One head's scores are one
 * vec of sums, which is slower than the sums of four heads at once, but faster than memory; four
 * heads at once read four streams, which is slower. The head in place h of the item has row h of
 * its scratch. tests/bench/README.md (kernels: AVX2, decode attention) has the gain.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_HEADS_H
#define QUIRE_KERNELS_WIDE_ATTENTION_HEADS_H
#include <string.h>
#include "kernels/wide/attention_scores.h"
#include "kernels/wide/attention_values.h"
#ifdef VEC_SUMS

#define HEADS_AHEAD 2u /* heads from what is read to what is prefetched: 4 KiB of 64 x bf16 */

struct heads_step { /* one head of a block */
    const struct item *it;
    uint32_t head;            /* its place in the item */
    struct pos_range range;   /* positions of the block */
    const char *block, *next; /* the item's first head in this block, in the next one */
};

/* The head in place h as an item by itself. */
INLINE struct item item_of_head(const struct item *of, uint32_t h)
{
    struct item it = *of;
    it.kv_head += h;
    it.n_kv = 1;
    it.q += h;
    it.s += (size_t)h * KERN_BLOCK;
    it.sum += h * it.sum_stride;
    it.joined += h * it.sum_stride;
    it.part = of->part ? of->part + h * item_part_floats(of) : NULL;
    return it;
}

INLINE void heads_load_q(const struct item *it)
{
    const uint32_t dim = it->a->head_dim;
    const float *q = it->a->q + item_at(it, 0, it->a->q_stride);
    for (uint32_t h = 0; h < it->n_kv; h++)
        for (uint32_t d = 0; d < dim; d++)
            it->q[(size_t)d * ROWS + h] = q[(size_t)h * dim + d];
}

/* The block that is read after that of position c: of K (or V), then the first of V, then the first
 * of the next split's K; at the end, this one. */
INLINE const char *heads_next(const struct item *it, const void *cache, uint32_t c)
{
    const uint32_t next = c / KERN_BLOCK * KERN_BLOCK + KERN_BLOCK;
    if (next < it->end)
        return item_block(it, cache, next);
    if (cache == it->a->k_cache)
        return item_block(it, it->a->v_cache, it->begin);
    return next < it->all_end ? item_block(it, it->a->k_cache, next) : item_block(it, cache, c);
}

INLINE const char *heads_ahead(const struct heads_step *s)
{
    const uint32_t h = s->head + HEADS_AHEAD, n = s->it->n_kv;
    return h < n ? s->block + h * s->it->head_bytes : s->next + (h - n) % n * s->it->head_bytes;
}

INLINE void heads_prefetch(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i, 0, 2);
}

/* The head's scores for the 16 positions of the block. */
INLINE void heads_score(const struct heads_step *s, const enum dtype type)
{
    const struct item *it = s->it;
    const struct score_tile t = {.it = it, .k = {s->block + s->head * it->head_bytes}};
    const float *q = it->q + s->head;
    const char *ahead = heads_ahead(s);
    const size_t pair_bytes = 2 * KERN_BLOCK * kv_element_bytes(type);
    struct vec sum = vec_set(0);
    for (uint32_t d = 0; d < it->a->head_dim; d += 2, q += 2 * ROWS, ahead += pair_bytes) {
        heads_prefetch(ahead, pair_bytes);
        vec_add_product(&sum, vec_set(q[0]), score_k(&t, type, d, 0, 0));
        vec_add_product(&sum, vec_set(q[ROWS]), score_k(&t, type, d + 1, 1, 0));
    }
    if (type == DT_I8)
        sum = vec_mul(sum, vec_load(item_scales(it, t.k[0])));
    vec_store(item_scores(it, s->range.begin) + s->head * KERN_BLOCK,
              vec_mul(sum, vec_set(it->a->scale)));
}

/* sums += p V of the head for the positions of the range, n_vec vecs from column `from` on. */
INLINE void heads_value(const struct heads_step *s, uint32_t from, const int n_vec,
                        const enum dtype type)
{
    const struct item *it = s->it;
    const size_t element = kv_element_bytes(type), step = it->a->head_dim * element;
    const uint32_t first = s->range.begin % KERN_BLOCK;
    const float *p = item_scores(it, s->range.begin) + s->head * KERN_BLOCK + first;
    const size_t at = first * step + from * element;
    const char *v = s->block + s->head * it->head_bytes + at, *ahead = heads_ahead(s) + at;
    float *home = it->sum + s->head * it->sum_stride + from;
    struct vec sum[VALUE_ROWS][COLUMNS_MAX];
    UNROLL
    for (int j = 0; j < n_vec; j++)
        sum[0][j] = vec_load(home + 16 * j);
    for (uint32_t c = s->range.begin; c < s->range.end; c++, v += step, ahead += step) {
        heads_prefetch(ahead, 16 * (size_t)n_vec * element);
        value_step(sum, (struct value_form){1, n_vec, 0, type}, v, p++, 0);
    }
    UNROLL
    for (int j = 0; j < n_vec; j++)
        vec_store(home + 16 * j, sum[0][j]);
}

INLINE void heads_values(const struct heads_step *s, const enum dtype type)
{
    const uint32_t dim = s->it->a->head_dim, wide = dim / (16 * COLUMNS_MAX) * (16 * COLUMNS_MAX);
    for (uint32_t d = 0; d < wide; d += 16 * COLUMNS_MAX)
        heads_value(s, d, COLUMNS_MAX, type);
    for (uint32_t d = wide; d < dim; d += 16)
        heads_value(s, d, 1, type);
}

/* K or V of the split. */
INLINE void heads_pass(const struct item *it, const bool is_k, const enum dtype type)
{
    const void *cache = is_k ? it->a->k_cache : it->a->v_cache;
    struct heads_step s = {.it = it};
    for (uint32_t c = it->begin; c < it->end; c = s.range.end) {
        const uint32_t end = c / KERN_BLOCK * KERN_BLOCK + KERN_BLOCK;
        s.range = (struct pos_range){c, end < it->end ? end : it->end};
        s.block = item_block(it, cache, c);
        s.next = heads_next(it, cache, c);
        for (s.head = 0; s.head < it->n_kv; s.head++)
            if (is_k)
                heads_score(&s, type);
            else
                heads_values(&s, type);
    }
}

INLINE void heads_typed(const struct item *it, const enum dtype type)
{
    heads_pass(it, true, type);
    for (uint32_t h = 0; h < it->n_kv; h++) {
        const struct item one = item_of_head(it, h);
        softmax_row(&one, 0);
    }
    heads_pass(it, false, type);
}

/* Compute the partial results of the item's heads for its split, into it->sum. */
static void heads_attend(const struct item *it)
{
    memset(it->sum, 0, it->n_kv * it->sum_stride * sizeof *it->sum);
    if (it->a->kv_dtype == DT_BF16)
        heads_typed(it, DT_BF16);
    else if (it->a->kv_dtype == DT_I8)
        heads_typed(it, DT_I8);
    else
        heads_typed(it, DT_F32);
}

#endif
#endif
