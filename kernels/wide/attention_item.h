/* SPDX-License-Identifier: Apache-2.0 */
/* attention_item - a work item of attention: the rows that share one pass over K and V, and their
 * scratch. See wide/attention.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_ITEM_H
#define QUIRE_KERNELS_WIDE_ATTENTION_ITEM_H
#include "kernels/tiling/attention_split.h"
#include "kernels/ops/kv_layout.h"
#include "kernels/tiling/unroll.h"
#include "kernels/wide/vec.h"

#define ROWS KERN_ATTENTION_ROWS

struct pos_range {
    uint32_t begin, end;
};

struct item {
    const struct attention_args *a;
    const struct attention_seq *seq;
    uint32_t kv_head, n_kv; /* the KV heads kv_head … kv_head + n_kv - 1 */
    uint32_t first, n_row;  /* rows first … first + n_row - 1 of this sequence in each KV head */
    struct pos_range limit; /* positions of this item; others belong to another item or split */
    uint32_t begin, end;    /* context positions of any row, within the limit */
    uint32_t all_end;       /* the same without the limit */
    float *part;            /* destination of the rows' partial results; NULL: results go to out */
    float *q, *s, *sum;     /* scratch */
    float *joined;          /* scratch: partial results of the splits so far */
    size_t sum_stride;      /* partial_stride() */
    size_t head_bytes;      /* of K or V, one block and head */
    uint32_t kv_rows;       /* KV heads of one token with at most as many rows are one item */
};

INLINE uint32_t item_group(const struct attention_args *a)
{
    return a->n_head / a->n_kv_head;
}

INLINE struct pos_range pos_range_cut(struct pos_range s, struct pos_range by)
{
    uint32_t begin = s.begin > by.begin ? s.begin : by.begin;
    return (struct pos_range){begin, s.end < by.end ? s.end : by.end};
}

/* Floats from a KV head's partial results for a split to the next head's. */
INLINE size_t item_part_floats(const struct item *it)
{
    return (size_t)it->seq->n_query * item_group(it->a) * partial_stride(it->a->head_dim);
}

/* From a split's partial results to the next split's. */
INLINE size_t item_split_floats(const struct item *it)
{
    return it->a->n_kv_head * item_part_floats(it);
}

/* The context of row r of the item within the limit; begin >= end if it is empty. */
INLINE struct pos_range item_range(const struct item *it, uint32_t r)
{
    const uint32_t pos = it->seq->start + (it->first + r) / item_group(it->a);
    const struct pos_range all = {attention_begin(it->a, pos), attention_end(it->a, it->seq, pos)};
    return pos_range_cut(all, it->limit);
}

/* The item of n_row rows from `first` on, of it->seq and it->kv_head, within it->limit. */
INLINE void item_rows(struct item *it, uint32_t first, uint32_t n_row)
{
    it->first = first;
    it->n_row = n_row;
    it->begin = item_range(it, 0).begin;
    it->end = item_range(it, n_row - 1).end;
    it->all_end =
        attention_end(it->a, it->seq, it->seq->start + (first + n_row - 1) / item_group(it->a));
}

/* The item restricted to the split of position c. */
INLINE struct item item_of_split(const struct item *of, uint32_t c)
{
    const uint32_t begin = c / ATTENTION_SPLIT * ATTENTION_SPLIT;
    struct item it = *of;
    it.limit = pos_range_cut(of->limit, (struct pos_range){begin, begin + ATTENTION_SPLIT});
    item_rows(&it, of->first, of->n_row);
    return it;
}

INLINE uint32_t item_head(const struct item *it, uint32_t r)
{
    const uint32_t group = item_group(it->a);
    return it->kv_head * group + (it->first + r) % group;
}

/* Offset of row r in q (stride q_stride) or out. */
INLINE size_t item_at(const struct item *it, uint32_t r, size_t stride)
{
    const uint32_t token = (it->first + r) / item_group(it->a);
    return (it->seq->row + token) * stride + (size_t)item_head(it, r) * it->a->head_dim;
}

/* The block that holds position c in a cache. */
INLINE const char *item_block(const struct item *it, const void *cache, uint32_t c)
{
    size_t block = it->seq->blocks[c / KERN_BLOCK];
    return (const char *)cache + (block * it->a->n_kv_head + it->kv_head) * it->head_bytes;
}

/* int8: the scales of the 16 positions of a block. */
INLINE const float *item_scales(const struct item *it, const void *block)
{
    return (const float *)(const void *)((const char *)block + kv_scales_at(it->a->head_dim));
}

/* Prefetch the block of position c. The blocks of a sequence are scattered, so the hardware cannot
 * predict the next one: without this prefetch, decoding runs at half the speed. */
INLINE void item_prefetch(const struct item *it, const void *cache, uint32_t c)
{
    if (c >= it->all_end)
        return;
    const char *p = item_block(it, cache, c);
    for (size_t i = 0; i < it->head_bytes; i += 64)
        __builtin_prefetch(p + i, 0, 2);
}

INLINE float *item_scores(const struct item *it, uint32_t c)
{
    return it->s + (size_t)(c / KERN_BLOCK - it->begin / KERN_BLOCK) * ROWS * KERN_BLOCK;
}

#ifdef VEC_SUMS
/* c + lane - pos of the positions of a block. */
INLINE struct vec item_distance(uint32_t pos, uint32_t c)
{
    static const float lanes[KERN_BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vec_add(vec_load(lanes), vec_set((float)((int64_t)c - pos)));
}

/* ALiBi: scores of row r less its head's slope times the distance. */
INLINE void slope_row(const struct item *it, uint32_t r, struct pos_range range)
{
    const uint32_t pos = it->seq->start + (it->first + r) / item_group(it->a);
    const struct vec slope = vec_set(it->a->slopes[item_head(it, r)]);
    for (uint32_t c = range.begin / KERN_BLOCK * KERN_BLOCK; c < range.end; c += KERN_BLOCK) {
        float *s = item_scores(it, c) + r * KERN_BLOCK;
        vec_store(s, vec_fnma(slope, vec_abs(item_distance(pos, c)), vec_load(s)));
    }
}

/* n elements of the output, from element `at` on. */
INLINE void item_store(const struct item *it, size_t at, struct vec y, uint32_t n)
{
    if (it->a->out_dtype == DT_BF16)
        vec_store_bf16_n((uint16_t *)it->a->out + at, y, n);
    else
        vec_store_n((float *)it->a->out + at, y, n);
}
#endif

#endif
