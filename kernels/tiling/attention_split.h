/* SPDX-License-Identifier: Apache-2.0 */
/* attention_spans - how attention cuts a context, and whose contexts go to several threads. Private
 * to kernels/.
 *
 * A context is cut into splits of ATTENTION_SPLIT positions of its sequence (0 … 1023, 1024 … 2047
 * …), wherever a chunk, a window or an item begins. Softmax runs over a split as over a context of
 * its own; splits are joined in ascending order (ref/attention.c). So bits depend on a row's
 * position only, scratch does not grow with the context, and the splits of one row may be computed
 * by several threads: each leaves a part, and attention_join joins them when all are there.
 *
 * A part is one row of one split: sums [partial_dim], then the largest score and the sum of weights; a
 * row that sees nothing of the split has weights 0. Where a sequence's parts are: by KV head, then
 * split, then row, one sequence that is split after the other in a->parts.
 *
 * Which sequences are split is decided from the numbers of the call alone, by every thread for
 * itself: those decoding (all rows of a KV head are one item) whose items are a large piece of a
 * thread's share, and only when the items as they are would leave threads waiting.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_ATTENTION_SPLIT_H
#define QUIRE_KERNELS_TILING_ATTENTION_SPLIT_H
#include <stdbool.h>
#include "kernels/ops/ops_attention.h"
#include "kernels/tiling/split.h"

#define ATTENTION_SPLIT 1024u /* positions, a multiple of 256 (DOT_TILE); changes bits */
#define PARTIAL_EXTRA   16u   /* floats behind the sums: max, total, and up to a line */
#define SPLIT_SEQS      4u    /* of the longest context: parts that there is room for */
#define SPLIT_SHARES    8u    /* an item of less than this part of a thread's share is not cut */
#define SPLIT_WASTE     8u    /* nothing is cut while no thread has 1 / this more than its share */

struct partial_row { /* of one row: of a split, or of those joined so far */
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
    uint64_t cost; /* positions that rows walk, about, and some for having them */
};

static inline struct seq_shape seq_shape(const struct attention_args *a,
                                         const struct attention_seq *s)
{
    const uint32_t end = s->start + s->n_query;
    const uint32_t begin = a->window && s->start + 1 > a->window ? s->start + 1 - a->window : 0;
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
    uint64_t least; /* cost of an item above which it is cut; UINT64_MAX: none is */
    size_t used;    /* floats of a->parts, by the sequences so far */
};

/* May the sequence be split at all? */
static inline bool seq_can_split(const struct seq_shape *q)
{
    return q->n_split > 1 && q->n_row <= KERN_ATTENTION_ROWS;
}

/* Is this sequence split? Asked once for each sequence of the call, in order. */
static inline bool split_plan_has(struct split_plan *p, const struct attention_args *a,
                                  const struct seq_shape *q)
{
    if (p->least == UINT64_MAX || !seq_can_split(q) || q->cost <= p->least ||
        seq_partial_floats(a, q) > a->n_part - p->used)
        return false;
    p->used += seq_partial_floats(a, q);
    return true;
}

/* What the busiest thread would have to do, times nth, when no sequence is split: as
 * attention_item_loop hands items out, a prompt's as if they were endlessly small. */
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
    uint64_t total = 0, largest = 0;
    if (!a->parts || nth < 2)
        return p;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const struct seq_shape q = seq_shape(a, &a->seqs[i]);
        total += q.cost * a->n_kv_head;
        if (seq_can_split(&q) && q.cost > largest)
            largest = q.cost;
    }
    const uint64_t least = total / ((uint64_t)nth * SPLIT_SHARES);
    if (largest > least && split_busiest(a, total, nth) > total + total / SPLIT_WASTE)
        p.least = least;
    return p;
}

/* Parts of a KV head and split (from first_split on) of a sequence whose parts begin at `base`. */
static inline float *partial_at(const struct attention_args *a, const struct seq_shape *q,
                                size_t base, uint32_t kv_head, uint32_t i_split)
{
    return a->parts + base +
           ((size_t)kv_head * q->n_split + i_split) * q->n_row * partial_stride(a->head_dim);
}

#endif
