/* SPDX-License-Identifier: Apache-2.0 */
/* dot_few - attention_dot.h's items of few rows: decoding, which is bound by the reading of K and
 * V. Private to avx512/attention_bf16.c; the bits are those of the other products.
 *
 * An item is one sequence's rows in several KV heads, which lie side by side in a block. A step
 * reads K or V of one head in FEW_BLOCKS blocks, and prefetches as many lines of a later step, so
 * that neither memory waits for the arithmetic nor the arithmetic for a burst of requests. The
 * steps of a tile, with three heads:
 *
 *     K of blocks 0-3: head 0, 1, 2; of blocks 4-7: head 0, 1, 2; …      scores
 *                                                                       softmax of each head
 *     V of blocks 0-3: head 0, 1, 2; of blocks 4-7: head 0, 1, 2; …      sums
 *
 * Where an item of single rows has several heads of bf16, a step is one head of one block: then
 * memory is read in order, which the hardware's prefetch continues; the loop of one sum a head is
 * slower, but faster than memory. (Four heads of a block at once, with four sums, read slower.)
 *
 * V is multiplied where it lies: two rows of bf16 become pairs in registers. int8 is widened to
 * f32, whose fused multiply-adds, of each pair the odd one first, are those of vdpbf16ps (MXCSR
 * flushes subnormals). tests/bench/README.md (kernels: decode attention) has the gain. Threads: as
 * ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_FEW_H
#define QUIRE_KERNELS_AVX512_DOT_FEW_H
#include "kernels/avx512/dot_few_values.h"
#include "kernels/avx512/dot_softmax.h"
#ifdef __AVX512BF16__

/* ---- steps ---- */

INLINE void few_typed(const struct few_step *s, const int rows, const bool is_k, const bool int8)
{
    if (!is_k)
        few_values(s, rows, int8);
    else if (rows == 1 && !int8 && s->n_block == 1)
        few_scores(s, rows, 1, int8);
    else
        few_scores(s, rows, FEW_VECS, int8);
}

INLINE void few_rows(const struct few_step *s, const int rows, bool is_k, bool int8)
{
    if (is_k && int8)
        few_typed(s, rows, true, true);
    else if (is_k)
        few_typed(s, rows, true, false);
    else if (int8)
        few_typed(s, rows, false, true);
    else
        few_typed(s, rows, false, false);
}

static void few_rows_any(const struct few_step *s, uint32_t rows, bool is_k, bool int8)
{
    if (rows == 1)
        few_rows(s, 1, is_k, int8);
    else if (rows == 2)
        few_rows(s, 2, is_k, int8);
    else if (rows == 3)
        few_rows(s, 3, is_k, int8);
    else if (rows == 4)
        few_rows(s, 4, is_k, int8);
    else if (rows == 5)
        few_rows(s, 5, is_k, int8);
    else
        few_rows(s, 6, is_k, int8);
}

/* ---- tiles ---- */

struct few_at {
    const char *cache; /* K or V of the layer; NULL: the item has ended */
    uint32_t c, head;  /* first position, of a block; head, counted from the item's first */
};

struct few_tile {
    const struct dot_item *d;
    uint32_t first;         /* position of the tile's first score */
    struct pos_range range; /* positions that count */
    uint32_t n_block;       /* of a step */
    uint32_t n_ahead;       /* steps from what is read to what is prefetched */
};

/* The blocks of a step; instead of one that does not exist, another. */
static void few_blocks(const char *to[FEW_BLOCKS], const struct few_tile *t, struct few_at at)
{
    const struct item *it = t->d->it;
    const uint32_t low = t->d->begin / KERN_BLOCK, last = (it->all_end - 1) / KERN_BLOCK;
    for (uint32_t j = 0; j < t->n_block; j++) {
        uint32_t i = at.c / KERN_BLOCK + j;
        i = i < low ? low : i > last ? last : i;
        to[j] = item_block(it, at.cache, i * KERN_BLOCK) + at.head * it->head_bytes;
    }
}

INLINE struct few_at few_first(const struct few_tile *t, const void *cache)
{
    const uint32_t width = t->n_block * KERN_BLOCK;
    return (struct few_at){.cache = cache, .c = t->range.begin / width * width};
}

/* The step after this one, of this tile or of the next one's K. */
static struct few_at few_next(const struct few_tile *t, struct few_at at)
{
    const struct item *it = t->d->it;
    const bool beyond = at.c >= t->range.end; /* in the next tile */
    if (++at.head < it->n_kv)
        return at;
    at.head = 0;
    at.c += t->n_block * KERN_BLOCK;
    if (at.c < t->range.end)
        return at;
    if (!beyond && at.cache == it->a->k_cache)
        return few_first(t, it->a->v_cache);
    at.cache = at.cache && at.c < it->all_end ? it->a->k_cache : NULL;
    return at;
}

/* `ahead`: what to prefetch. */
static void few_step(const struct few_tile *t, struct few_at at, struct few_at ahead)
{
    const struct dot_item *d = t->d;
    const struct item *it = d->it;
    const bool is_k = at.cache == it->a->k_cache;
    const uint32_t n_group = (it->n_row + FEW_SUMS - 1) / FEW_SUMS, dim = d->room.dim;
    const struct pos_range whole = {at.c, at.c + t->n_block * KERN_BLOCK};
    struct few_step s = {.n_block = t->n_block, .first = at.c, .dim = it->a->head_dim};
    s.range = pos_range_cut(t->range, whole);
    few_blocks(s.block, t, at);
    few_blocks(s.ahead, t, ahead.cache ? ahead : at);
    for (uint32_t i = 0; i < n_group; i++) { /* groups of equal size */
        const uint32_t begin = it->n_row * i / n_group, end = it->n_row * (i + 1) / n_group;
        const size_t row = at.head * it->n_row + begin;
        const size_t in_tile = row * DOT_TILE + (at.c - t->first);
        s.w = is_k ? d->room.q + row * dim : d->room.p + in_tile;
        s.out = is_k ? d->room.s + in_tile : d->room.sum + row * dim;
        few_rows_any(&s, end - begin, is_k, it->a->kv_dtype == DT_I8);
        memcpy(s.ahead, s.block, sizeof s.ahead); /* once is enough */
    }
}

/* The steps of K or V. */
static void few_steps(const struct few_tile *t, const void *cache)
{
    struct few_at at = few_first(t, cache), ahead = at;
    for (uint32_t i = 0; i < t->n_ahead; i++)
        ahead = few_next(t, ahead);
    while (at.cache == cache && at.c < t->range.end) {
        few_step(t, at, ahead);
        at = few_next(t, at);
        ahead = few_next(t, ahead);
    }
}

INLINE bool few_in_order(const struct item *it)
{
    const struct attention_args *a = it->a;
    return it->n_row == 1 && a->kv_dtype == DT_BF16 && it->n_kv > 2;
}

/* The positions `tile` of the tile that begins at `first`. */
static void few_tile(const struct dot_item *d, uint32_t first, struct pos_range tile)
{
    const struct pos_range whole = {tile.begin / 32 * 32, (tile.end + 31) / 32 * 32};
    struct few_tile t = {.d = d, .first = first, .range = tile};
    t.n_block = few_in_order(d->it) ? 1 : FEW_BLOCKS;
    t.n_ahead = FEW_AHEAD / (uint32_t)(t.n_block * d->it->head_bytes);
    t.n_ahead += t.n_ahead == 0;
    few_steps(&t, d->it->a->k_cache);
    for (uint32_t h = 0; h < d->it->n_kv; h++) {
        struct item one;
        const struct dot_item of = dot_head(d, &one, h);
        dot_softmax_typed(&of, first, whole);
    }
    few_steps(&t, d->it->a->v_cache);
}

#endif
#endif
