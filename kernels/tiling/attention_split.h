/* SPDX-License-Identifier: Apache-2.0 */
/* attention_split - how attention splits a context, and which contexts several threads share.
 * Private to kernels/.
 *
 * A context is cut into splits of ATTENTION_SPLIT absolute positions of its sequence (0 … 511,
 * 512 … 1023 …), independent of chunks, windows and items. Each split has its own softmax; splits
 * are joined in ascending order (ref/attention.c). So bits depend on a row's position only, scratch
 * does not grow with the context, and several threads may compute the splits of one row: each
 * stores a partial result, and attention_join joins them after a barrier.
 *
 * A partial result is of one row and one split: sums [partial_dim], then the largest score and the
 * sum of weights; the weights of a row without positions in the split are 0. a->parts holds those
 * of one split sequence after the other, each ordered by split, then KV head, then row.
 *
 * Every thread decides from the arguments only, and so all alike, which sequences are split. They
 * are in decode (all rows of a KV head are one item), and
 * - the items are a large part of a thread's share, and threads would be idle otherwise; or
 * - several threads share the sequence, K and V are bf16, and a KV head has one row. Divided by KV
 *   heads, each thread reads a part of every block; by splits, blocks are read whole and in order
 *   (tests/bench/README.md has the gain). With more rows or int8, arithmetic takes longer than
 *   reading; f32 is read as fast either way.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_ATTENTION_SPLIT_H
#define QUIRE_KERNELS_TILING_ATTENTION_SPLIT_H
#include <stdbool.h>
#include "kernels/ops/ops_attention.h"
#include "kernels/tiling/split.h"

#define ATTENTION_SPLIT 512u /* positions, a multiple of 256 (DOT_TILE); changes bits */
#define PARTIAL_EXTRA   16u  /* floats after the sums: max, total, padding to a cache line */
#define SPLIT_SEQS      4u   /* sequences of the longest context whose partial results fit */
#define SPLIT_SHARES    8u   /* an item below 1 / this of a thread's share divides evenly enough */
#define SPLIT_WASTE     8u   /* items are split if some thread has 1 / this more than its share */

/* The context of the row at position pos: from begin to end - 1. */
static inline uint32_t attention_begin(const struct attention_args *a, uint32_t pos)
{
    if (a->chunked && a->window)
        return pos / a->window * a->window;
    return a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
}

static inline uint32_t attention_end(const struct attention_args *a, const struct attention_seq *s,
                                     uint32_t pos)
{
    const uint32_t all = s->start + s->n_query;
    if (!a->both_ways)
        return pos + 1;
    return a->window && a->window < all - pos ? pos + a->window : all;
}

struct partial_row { /* one row's result for a split, or for the splits joined so far */
    float *sum;      /* [partial_dim] */
    float max, total;
};

static inline uint32_t partial_dim(uint32_t head_dim)
{
    return (head_dim + 31) / 32 * 32;
}

static inline size_t partial_stride(uint32_t head_dim) /* floats of one row of one split */
{
    return partial_dim(head_dim) + PARTIAL_EXTRA;
}

struct seq_shape { /* of one sequence in one KV head */
    uint32_t n_row;
    uint32_t first_split, n_split;
    uint64_t cost; /* about the positions that the rows read, plus a constant per row */
};

static inline struct seq_shape seq_shape(const struct attention_args *a,
                                         const struct attention_seq *s)
{
    const uint32_t end = s->start + s->n_query, begin = attention_begin(a, s->start);
    struct seq_shape q = {.n_row = s->n_query * (a->n_head / a->n_kv_head)};
    q.first_split = begin / ATTENTION_SPLIT;
    q.n_split = q.n_row ? (end - 1) / ATTENTION_SPLIT + 1 - q.first_split : 0;
    q.cost = (uint64_t)(end - begin + KERN_BLOCK) * q.n_row;
    return q;
}

static inline size_t seq_partial_floats(const struct attention_args *a, const struct seq_shape *q)
{
    return (size_t)a->n_kv_head * q->n_split * q->n_row * partial_stride(a->head_dim);
}

struct split_plan {
    uint64_t least;       /* items with a greater cost are split; UINT64_MAX: none */
    uint64_t total, done; /* cost of all sequences, of those so far */
    uint32_t nth;         /* 0: no sequence is split */
    size_t used;          /* floats of a->parts used by the sequences so far */
};

/* True if the sequence may be split. */
static inline bool seq_can_split(const struct seq_shape *q)
{
    return q->n_split > 1 && q->n_row <= KERN_ATTENTION_ROWS;
}

/* True if reading in order pays: an item has all KV heads, and the share of a thread ends within
 * the sequence, which begins at cost `from`, with a split at least on both sides. */
static inline bool seq_is_shared(const struct split_plan *p, const struct attention_args *a,
                                 const struct seq_shape *q, uint64_t from)
{
    const uint64_t item = ATTENTION_SPLIT + KERN_BLOCK, split = item * a->n_kv_head;
    const uint64_t all = q->cost * a->n_kv_head;
    const uint64_t ith = ((from + split) * p->nth + p->total - 1) / p->total;
    return a->kv_dtype == DT_BF16 && q->n_row == 1 && a->n_kv_head <= KERN_ATTENTION_ROWS &&
           item * p->nth * SPLIT_SHARES <= p->total && ith < p->nth &&
           ith * p->total / p->nth + split <= from + all;
}

/* True if this sequence is split. Call it once for each sequence of the call, in order. */
static inline bool split_plan_has(struct split_plan *p, const struct attention_args *a,
                                  const struct seq_shape *q)
{
    const uint64_t from = p->done;
    p->done += q->cost * a->n_kv_head;
    if (!p->nth || !seq_can_split(q) || seq_partial_floats(a, q) > a->n_part - p->used ||
        !(q->cost > p->least || seq_is_shared(p, a, q, from)))
        return false;
    p->used += seq_partial_floats(a, q);
    return true;
}

/* Cost of the busiest thread, times nth, if no sequence is split: items are assigned as in
 * attention_item_loop, those of prompts as if infinitely small. */
static inline uint64_t split_busiest(const struct attention_args *a, uint64_t total, uint32_t nth)
{
    uint64_t done = 0, load = 0, most = total;
    uint32_t ith = 0;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const struct seq_shape q = seq_shape(a, &a->seqs[i]);
        for (uint32_t g = 0; g < a->n_kv_head && q.n_row; g++, done += q.cost) {
            const uint32_t its = (uint32_t)((done + q.cost / 2) * nth / total);
            if (q.n_row > KERN_ATTENTION_ROWS)
                continue;
            load = its == ith ? load + q.cost : q.cost;
            ith = its;
            most = load * nth > most ? load * nth : most;
        }
    }
    return most;
}

static inline struct split_plan split_plan_make(const struct attention_args *a, uint32_t nth)
{
    struct split_plan p = {.least = UINT64_MAX};
    uint64_t largest = 0;
    if (!a->parts || nth < 2)
        return p;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const struct seq_shape q = seq_shape(a, &a->seqs[i]);
        p.total += q.cost * a->n_kv_head;
        if (seq_can_split(&q) && q.cost > largest)
            largest = q.cost;
    }
    p.nth = largest ? nth : 0;
    const uint64_t least = p.total / ((uint64_t)nth * SPLIT_SHARES);
    if (largest > least && split_busiest(a, p.total, nth) > p.total + p.total / SPLIT_WASTE)
        p.least = least;
    return p;
}

/* Partial results of a KV head and split (counted from first_split) of a sequence whose results
 * begin at `base`. */
static inline float *partial_at(const struct attention_args *a, const struct seq_shape *q,
                                size_t base, uint32_t kv_head, uint32_t i_split)
{
    return a->parts + base +
           ((size_t)i_split * a->n_kv_head + kv_head) * q->n_row * partial_stride(a->head_dim);
}

#endif
