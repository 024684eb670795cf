/* SPDX-License-Identifier: Apache-2.0 */
/* Shares are cut from the items of wide/attention.h laid end to end by cost:
 *
 *     item 0          item 1                 item 2
 *     |--------------|----------------------|--------|
 *     thread 0           | thread 1              | thread 2
 *
 * A thread has at most two parts of cut items: the end of one that began before its share, and the
 * beginning of one that goes on behind it. Each part is the engine's own item with a window of its
 * positions. The thread with an item's first part puts the parts together after the barrier. */
#include "free_attention.h"
#include <sched.h>
#include <stdatomic.h>
#include "kernels/wide/attention.h"

#ifndef VEC_SUMS
bool free_attention_there(void)
{
    return false;
}
void free_attention(const struct attention_args *a, const struct kern_exec *x)
{
    (void)a;
    (void)x;
}
#else

#define THREADS_MAX 64
#define DIM_MAX     256
#define SPINS       4096 /* before the core is offered to others */

struct piece { /* of a cut item: its rows' parts, not divided by their totals yet */
    float parts[ROWS * (DIM_MAX + PARTIAL_EXTRA)];
};
static struct piece pieces[THREADS_MAX][2]; /* 0: of an item begun before the share; 1: after */
static atomic_uint n_arrived, generation;

struct cut { /* thread i_thread's blocks of an item */
    uint32_t begin, end;
    uint32_t which; /* of its pieces */
};
struct work {
    const struct attention_args *a;
    const struct kern_exec *x;
    struct item it;
    uint64_t total, done; /* cost of all items, of those before this one */
};

bool free_attention_there(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

static void meet(uint32_t nth)
{
    uint32_t now = atomic_load(&generation);
    if (atomic_fetch_add(&n_arrived, 1) + 1 == nth) {
        atomic_store(&n_arrived, 0);
        atomic_fetch_add(&generation, 1);
        return;
    }
    for (uint32_t i = 1; atomic_load(&generation) == now; i++)
        if (i % SPINS)
            __builtin_ia32_pause();
        else
            sched_yield();
}

static uint32_t n_blocks(const struct item *it)
{
    return (it->end - it->begin / KERN_BLOCK * KERN_BLOCK + KERN_BLOCK - 1) / KERN_BLOCK;
}

/* Blocks of the item that lie before share number i_thread. */
static uint32_t blocks_before(const struct work *w, uint64_t cost, uint32_t i_thread)
{
    uint64_t at = w->total * i_thread / w->x->nth;
    if (at <= w->done)
        return 0;
    return at >= w->done + cost ? n_blocks(&w->it)
                                : (uint32_t)((at - w->done) * n_blocks(&w->it) / cost);
}

static struct cut cut_of(const struct work *w, uint64_t cost, uint32_t i_thread)
{
    struct cut c = {
        .begin = blocks_before(w, cost, i_thread),
        .end = blocks_before(w, cost, i_thread + 1),
    };
    c.which = c.begin == 0;
    return c;
}

static void run_piece(const struct work *w, struct cut c)
{
    const uint32_t first = w->it.begin / KERN_BLOCK * KERN_BLOCK;
    struct item it = w->it;
    it.limit.begin = first + c.begin * KERN_BLOCK;
    it.limit.end = first + c.end * KERN_BLOCK;
    item_rows(&it, it.first, it.n_row);
    it.part = pieces[w->x->ith][c.which].parts;
    item_run(&it);
}

static void put_together(const struct work *w, uint64_t cost)
{
    const struct item *it = &w->it;
    const uint32_t ith = w->x->ith;
    float *to = pieces[ith][cut_of(w, cost, ith).which].parts;
    for (uint32_t r = 0; r < it->n_row; r++) {
        for (uint32_t t = ith + 1; t < w->x->nth; t++) {
            const struct cut c = cut_of(w, cost, t);
            if (c.begin < c.end)
                partial_join(to + r * it->sum_stride, pieces[t][c.which].parts + r * it->sum_stride,
                             partial_dim(w->a->head_dim));
        }
        partial_store(it, r, to + r * it->sum_stride);
    }
}

/* One item, in the first pass computed and in the second put together. True when it is cut. */
static bool visit(struct work *w, uint32_t pass)
{
    const uint32_t nth = w->x->nth, ith = w->x->ith;
    const uint64_t cost = item_cost(&w->it);
    const struct cut own = cut_of(w, cost, ith);
    const bool whole =
        w->it.seq->n_query > 1 || partial_dim(w->a->head_dim) > DIM_MAX || nth > THREADS_MAX;
    bool is_cut = false;
    for (uint32_t t = 0; t < nth && !whole; t++) {
        struct cut c = cut_of(w, cost, t);
        is_cut = is_cut || (c.begin < c.end && c.end - c.begin < n_blocks(&w->it));
    }
    if (!is_cut) {
        if (pass == 0 && (w->done + cost / 2) * nth / w->total == ith)
            item_run(&w->it);
    } else if (own.begin < own.end) {
        if (pass == 0)
            run_piece(w, own);
        else if (own.begin == 0)
            put_together(w, cost);
    }
    w->done += cost;
    return is_cut;
}

void free_attention(const struct attention_args *a, const struct kern_exec *x)
{
    struct work w = {.a = a, .x = x, .it = item_room(a, x)};
    bool any_cut = false;
    for (uint32_t pass = 0; pass < 3; pass++) { /* 0: the total; 1: compute; 2: put together */
        struct split_plan none = {.least = UINT64_MAX};
        w.done = 0;
        for (uint32_t s = 0; s < a->n_seq; s++) {
            const struct seq_cut c = seq_cut(a, &a->seqs[s], &none, ROWS);
            w.it.seq = &a->seqs[s];
            for (uint32_t i = 0; i < c.n_item; i++) {
                item_init(&w.it, &c, i);
                if (pass == 0)
                    w.total += item_cost(&w.it);
                else
                    any_cut |= visit(&w, pass - 1);
            }
        }
        if (pass == 1 && !any_cut)
            return;
        if (pass == 1)
            meet(x->nth);
    }
}
#endif
