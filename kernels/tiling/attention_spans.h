/* SPDX-License-Identifier: Apache-2.0 */
/* attention_spans - how attention cuts a context, and whose contexts go to several threads. Private
 * to kernels/.
 *
 * A context is cut into spans of ATTENTION_SPAN positions of its sequence (0 … 1023, 1024 … 2047
 * …), wherever a chunk, a window or an item begins. Softmax runs over a span as over a context of
 * its own; spans are joined in ascending order (ref/attention.c). So bits depend on a row's
 * position only, scratch does not grow with the context, and the spans of one row may be computed
 * by several threads: each leaves a part, and attention_join joins them when all are there.
 *
 * A part is one row of one span: sums [part_dim], then the largest score and the sum of weights; a
 * row that sees nothing of the span has weights 0. Where a sequence's parts are: by KV head, then
 * span, then row, one sequence that is split after the other in a->parts.
 *
 * Which sequences are split is decided from the numbers of the call alone, by every thread for
 * itself: those decoding (all rows of a KV head are one item) whose items are a large piece of a
 * thread's share, and only when the items as they are would leave threads waiting.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_ATTENTION_SPANS_H
#define QUIRE_KERNELS_TILING_ATTENTION_SPANS_H
#include <stdbool.h>
#include "kernels/ops/ops_attention.h"
#include "kernels/tiling/split.h"

#define ATTENTION_SPAN 1024u /* positions, a multiple of 256 (DOT_TILE); changes bits */
#define PART_EXTRA     16u   /* floats behind the sums: max, total, and up to a line */
#define PART_SEQS      4u    /* of the longest context: parts that there is room for */
#define PART_SHARES    8u    /* an item of less than this part of a thread's share is not cut */
#define PART_WASTE     8u    /* nothing is cut while no thread has 1 / this more than its share */

struct part_row { /* of one row: of a span, or of those joined so far */
    float *sum;   /* [part_dim] */
    float max, total;
};

static inline uint32_t part_dim(uint32_t head_dim)
{
    return (head_dim + 31) / 32 * 32;
}

static inline size_t part_stride(uint32_t head_dim) /* floats of one row of one span */
{
    return part_dim(head_dim) + PART_EXTRA;
}

struct seq_shape { /* of one sequence in one KV head */
    uint32_t n_row;
    uint32_t first_span, n_span;
    uint64_t cost; /* positions that rows walk, about, and some for having them */
};

static inline struct seq_shape seq_shape(const struct attention_args *a,
                                         const struct attention_seq *s)
{
    const uint32_t end = s->start + s->n_query;
    const uint32_t begin = a->window && s->start + 1 > a->window ? s->start + 1 - a->window : 0;
    struct seq_shape q = {.n_row = s->n_query * (a->n_head / a->n_kv_head)};
    q.first_span = begin / ATTENTION_SPAN;
    q.n_span = q.n_row ? (end - 1) / ATTENTION_SPAN + 1 - q.first_span : 0;
    q.cost = (uint64_t)(end - begin + KERN_BLOCK) * q.n_row;
    return q;
}

static inline size_t seq_part_floats(const struct attention_args *a, const struct seq_shape *q)
{
    return (size_t)a->n_kv_head * q->n_span * q->n_row * part_stride(a->head_dim);
}

struct part_plan {
    uint64_t least; /* cost of an item above which it is cut; UINT64_MAX: none is */
    size_t used;    /* floats of a->parts, by the sequences so far */
};

/* May the sequence be split at all? */
static inline bool seq_divides(const struct seq_shape *q)
{
    return q->n_span > 1 && q->n_row <= KERN_ATTENTION_ROWS;
}

/* Is this sequence split? Asked once for each sequence of the call, in order. */
static inline bool part_plan_splits(struct part_plan *p, const struct attention_args *a,
                                    const struct seq_shape *q)
{
    if (p->least == UINT64_MAX || !seq_divides(q) || q->cost <= p->least ||
        seq_part_floats(a, q) > a->n_part - p->used)
        return false;
    p->used += seq_part_floats(a, q);
    return true;
}

/* What the busiest thread would have to do, times nth, when no sequence is split: as
 * attention_walk hands items out, a prompt's as if they were endlessly small. */
static inline uint64_t part_busiest(const struct attention_args *a, uint64_t total, uint32_t nth)
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

static inline struct part_plan part_plan_make(const struct attention_args *a, uint32_t nth)
{
    struct part_plan p = {.least = UINT64_MAX};
    uint64_t total = 0, largest = 0;
    if (!a->parts || nth < 2)
        return p;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const struct seq_shape q = seq_shape(a, &a->seqs[i]);
        total += q.cost * a->n_kv_head;
        if (seq_divides(&q) && q.cost > largest)
            largest = q.cost;
    }
    const uint64_t least = total / ((uint64_t)nth * PART_SHARES);
    if (largest > least && part_busiest(a, total, nth) > total + total / PART_WASTE)
        p.least = least;
    return p;
}

/* Parts of a KV head and span (from first_span on) of a sequence whose parts begin at `base`. */
static inline float *part_at(const struct attention_args *a, const struct seq_shape *q, size_t base,
                             uint32_t kv_head, uint32_t i_span)
{
    return a->parts + base +
           ((size_t)kv_head * q->n_span + i_span) * q->n_row * part_stride(a->head_dim);
}

#endif
