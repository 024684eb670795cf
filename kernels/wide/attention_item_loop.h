/* SPDX-License-Identifier: Apache-2.0 */
/* attention_item_loop - division of attention into work items and their assignment to threads. See
 * wide/attention_item.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_ITEM_LOOP_H
#define QUIRE_KERNELS_WIDE_ATTENTION_ITEM_LOOP_H
#include "kernels/wide/attention_item.h"

typedef void item_fn(const struct item *it);

/* The items of one sequence. */
struct seq_cut {
    struct seq_shape shape;
    bool split;
    size_t parts;     /* offset of its partial results in a->parts */
    uint32_t rows;    /* of an item */
    uint32_t by_rows; /* items of a KV head and split */
    uint32_t n_item;
};

INLINE struct seq_cut seq_cut(const struct attention_args *a, const struct attention_seq *s,
                              struct split_plan *p, uint32_t rows)
{
    struct seq_cut c = {.shape = seq_shape(a, s), .parts = p->used};
    c.split = split_plan_has(p, a, &c.shape);
    c.rows = c.split ? c.shape.n_row : rows;
    c.by_rows = c.shape.n_row ? (c.shape.n_row + c.rows - 1) / c.rows : 0;
    c.n_item = a->n_kv_head * (c.split ? c.shape.n_split : c.by_rows);
    return c;
}

/* Rows per item: fewer if there are not enough items for all threads. */
INLINE uint32_t rows_per_item(const struct attention_args *a, const struct split_plan *plan,
                              uint32_t most, uint32_t nth)
{
    uint32_t rows = most;
    for (; rows > 1; rows /= 2) {
        struct split_plan p = *plan;
        size_t n = 0;
        for (uint32_t i = 0; i < a->n_seq; i++)
            n += seq_cut(a, &a->seqs[i], &p, rows).n_item;
        if (n >= nth)
            break;
    }
    return rows;
}

INLINE void item_init(struct item *it, const struct seq_cut *c, uint32_t i)
{
    const struct attention_args *a = it->a;
    const uint32_t n_row = c->shape.n_row, first = c->split ? 0 : i % c->by_rows * c->rows;
    const uint32_t i_split = i / a->n_kv_head;
    it->kv_head = c->split ? i % a->n_kv_head : i / c->by_rows;
    it->n_kv = 1;
    it->part = NULL;
    it->limit = (struct pos_range){0, UINT32_MAX};
    if (c->split) {
        it->limit.begin = (c->shape.first_split + i_split) * ATTENTION_SPLIT;
        it->limit.end = it->limit.begin + ATTENTION_SPLIT;
        it->part = partial_at(a, &c->shape, c->parts, it->kv_head, i_split);
    }
    item_rows(it, first, n_row - first < c->rows ? n_row - first : c->rows);
}

/* Cost of an item: the positions that its rows read, plus a constant. */
INLINE uint64_t item_cost(const struct item *it)
{
    return (uint64_t)(it->end - it->begin + KERN_BLOCK) * it->n_row;
}

struct item_share {       /* of a thread: the items whose middle is in it */
    uint64_t done, total; /* cost of the items so far, of all */
    uint32_t ith, nth;
};

INLINE bool item_share_has(const struct item_share *s, uint64_t done, uint64_t cost)
{
    return (done + cost / 2) * s->nth / s->total == s->ith;
}

/* How many items from that of `it` on, KV heads of one token, are in the share and fit into one. */
INLINE uint32_t items_side_by_side(const struct item *it, const struct seq_cut *c,
                                   const struct item_share *s)
{
    const uint64_t cost = item_cost(it);
    uint32_t n = 1;
    if (c->by_rows > 1 || it->seq->n_query > 1 || it->n_row > it->kv_rows)
        return n;
    while (it->kv_head + n < it->a->n_kv_head && (n + 1) * it->n_row <= ROWS &&
           item_share_has(s, s->done + n * cost, cost))
        n++;
    return n;
}

/* Run the items of a sequence that are in the share. */
INLINE void items_run(struct item *it, const struct seq_cut *c, struct item_share *s, item_fn *run)
{
    for (uint32_t i = 0; i < c->n_item; i += it->n_kv) {
        item_init(it, c, i);
        const uint64_t cost = item_cost(it);
        if (item_share_has(s, s->done, cost)) {
            it->n_kv = items_side_by_side(it, c, s);
            run(it);
        }
        s->done += cost * it->n_kv;
    }
}

/* The items in order, of at most `most` rows; a thread computes those whose middle is in its share
 * of the total cost. `of` has the members that are the same for all items. */
INLINE void attention_item_loop(const struct attention_args *a, const struct kern_exec *x,
                                const struct item *of, uint32_t most, item_fn *run)
{
    const struct split_plan plan = split_plan_make(a, x->nth);
    const uint32_t rows = rows_per_item(a, &plan, most, x->nth);
    struct item_share share = {.ith = x->ith, .nth = x->nth};
    struct item it = *of;
    it.a = a;
    for (int pass = 0; pass < 2; pass++) {
        struct split_plan p = plan;
        for (uint32_t s = 0; s < a->n_seq; s++) {
            const struct seq_cut c = seq_cut(a, &a->seqs[s], &p, rows);
            it.seq = &a->seqs[s];
            for (uint32_t i = 0; i < c.n_item && !pass; i++) {
                item_init(&it, &c, i);
                share.total += item_cost(&it);
            }
            if (pass)
                items_run(&it, &c, &share, run);
        }
    }
}

/* Join row r of a sequence in a KV head; its n_split partial results begin at `parts` with the
 * first split's rows, are item_split_floats apart, and may be overwritten. */
typedef void join_fn(const struct item *it, uint32_t r, float *parts, uint32_t n_split);

/* The rows of the sequences that attention_item_loop has split, shared among threads. */
INLINE void attention_join_loop(const struct attention_args *a, const struct kern_exec *x,
                                join_fn *join)
{
    struct split_plan p = split_plan_make(a, x->nth);
    struct item it = {.a = a, .limit = {0, UINT32_MAX}, .sum_stride = partial_stride(a->head_dim)};
    uint32_t i_row = 0;
    for (uint32_t s = 0; s < a->n_seq && p.nth; s++) {
        const struct seq_cut c = seq_cut(a, &a->seqs[s], &p, 1);
        if (!c.split)
            continue;
        it.seq = &a->seqs[s];
        for (it.kv_head = 0; it.kv_head < a->n_kv_head; it.kv_head++) {
            float *parts = partial_at(a, &c.shape, c.parts, it.kv_head, 0);
            item_rows(&it, 0, c.shape.n_row);
            for (uint32_t r = 0; r < c.shape.n_row; r++, i_row++)
                if (i_row % x->nth == x->ith)
                    join(&it, r, parts, c.shape.n_split);
        }
    }
}

#endif
