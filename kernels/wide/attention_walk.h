/* SPDX-License-Identifier: Apache-2.0 */
/* attention_walk - attention cut into items and shared among threads. See wide/attention_item.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_WALK_H
#define QUIRE_KERNELS_WIDE_ATTENTION_WALK_H
#include "kernels/wide/attention_item.h"

typedef void item_fn(const struct item *it);

/* Items of one sequence, `rows` rows each. */
INLINE uint32_t seq_items(const struct attention_args *a, const struct attention_seq *s,
                          uint32_t rows)
{
    return a->n_kv_head * ((s->n_query * item_group(a) + rows - 1) / rows);
}

/* Fewer rows an item when there would not be enough items for all threads. */
INLINE uint32_t rows_per_item(const struct attention_args *a, uint32_t most, uint32_t nth)
{
    uint32_t rows = most;
    for (; rows > 1; rows /= 2) {
        size_t n = 0;
        for (uint32_t i = 0; i < a->n_seq; i++)
            n += seq_items(a, &a->seqs[i], rows);
        if (n >= nth)
            break;
    }
    return rows;
}

/* The item of n_row rows from `first` on, of it->seq and it->kv_head. */
INLINE void item_rows(struct item *it, uint32_t first, uint32_t n_row)
{
    it->first = first;
    it->n_row = n_row;
    it->begin = item_span(it, 0).begin;
    it->end = item_span(it, n_row - 1).end;
}

INLINE void item_init(struct item *it, const struct attention_args *a, uint32_t i_seq, uint32_t i,
                      uint32_t rows)
{
    const struct attention_seq *s = &a->seqs[i_seq];
    const uint32_t n_row = s->n_query * item_group(a), per_head = (n_row + rows - 1) / rows;
    const uint32_t first = i % per_head * rows;
    it->a = a;
    it->seq = s;
    it->kv_head = i / per_head;
    item_rows(it, first, n_row - first < rows ? n_row - first : rows);
}

/* Cost of an item: the positions its rows walk, plus some for having it. */
INLINE uint64_t item_cost(const struct item *it)
{
    return (uint64_t)(it->end - it->begin + KERN_BLOCK) * it->n_row;
}

/* The items in order, of `most` rows or fewer; a thread takes those whose middle lies in its share
 * of the total cost. `of` has what is the same for all items. */
INLINE void attention_walk(const struct attention_args *a, const struct kern_exec *x,
                           const struct item *of, uint32_t most, item_fn *run)
{
    const uint32_t rows = rows_per_item(a, most, x->nth);
    struct item it = *of;
    uint64_t total = 0, done = 0;
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            total += item_cost(&it);
        }
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            uint64_t cost = item_cost(&it);
            if ((done + cost / 2) * x->nth / total == x->ith)
                run(&it);
            done += cost;
        }
}

#endif
