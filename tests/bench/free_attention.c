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

struct piece { /* of a cut item, not divided by its sum yet */
    float max[ROWS], sum[ROWS], out[ROWS][DIM_MAX];
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
    struct cut c = {.begin = blocks_before(w, cost, i_thread),
                    .end = blocks_before(w, cost, i_thread + 1)};
    c.which = c.begin == 0;
    return c;
}

static void run_piece(const struct work *w, struct cut c)
{
    const uint32_t first = w->it.begin / KERN_BLOCK * KERN_BLOCK;
    struct attention_args a = *w->a;
    struct attention_seq seq = *w->it.seq;
    struct item it = w->it;
    struct piece *p = &pieces[w->x->ith][c.which];
    it.begin = c.begin ? first + c.begin * KERN_BLOCK : it.begin;
    it.end = first + c.end * KERN_BLOCK < it.end ? first + c.end * KERN_BLOCK : it.end;
    seq.start = it.end - 1;
    a.window = it.end - it.begin;
    it.a = &a;
    it.seq = &seq;
    /* item_run from here on, but for the division */
    item_load_q(&it);
    for (uint32_t at = it.begin / KERN_BLOCK * KERN_BLOCK; at < it.end;
         at += SCORE_BLOCKS * KERN_BLOCK)
        score_blocks(&it, at, it.end - at > KERN_BLOCK ? SCORE_BLOCKS : 1);
    for (uint32_t r = 0; r < it.n_row; r++) {
        p->max[r] = -INFINITY;
        for (uint32_t at = it.begin; at < it.end; at++)
            p->max[r] = fmaxf(p->max[r], item_scores(&it, at)[r * KERN_BLOCK + at % KERN_BLOCK]);
        p->sum[r] = 1 / softmax_row(&it, r);
    }
    memset(it.sum, 0, ROWS * it.sum_stride * sizeof *it.sum);
    for (uint32_t at = it.begin; at < it.end;) {
        uint32_t left = it.end - at;
        struct span chunk = {at, at + (left < CHUNK_TOKENS ? left : CHUNK_TOKENS)};
        for (uint32_t row = 0; row < it.n_row; row += VALUE_ROWS)
            value_rows(&it, row, it.n_row - row < VALUE_ROWS ? it.n_row - row : VALUE_ROWS, chunk);
        at = chunk.end;
    }
    for (uint32_t r = 0; r < it.n_row; r++)
        memcpy(p->out[r], it.sum + r * it.sum_stride, a.head_dim * sizeof(float));
}

static void put_together(const struct work *w, uint64_t cost)
{
    const struct item *it = &w->it;
    for (uint32_t r = 0; r < it->n_row; r++) {
        float *out = w->a->out + item_at(it, r, w->a->out_stride), max = -INFINITY, sum = 0;
        memset(out, 0, w->a->head_dim * sizeof *out);
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t t = w->x->ith; t < w->x->nth; t++) {
                struct cut c = cut_of(w, cost, t);
                const struct piece *p = &pieces[t][c.which];
                if (c.begin == c.end)
                    continue;
                if (pass == 0) {
                    max = fmaxf(max, p->max[r]);
                    continue;
                }
                float weight = expf(p->max[r] - max);
                sum += weight * p->sum[r];
                for (uint32_t d = 0; d < w->a->head_dim; d++)
                    out[d] += weight * p->out[r][d];
            }
        for (uint32_t d = 0; d < w->a->head_dim; d++)
            out[d] /= sum;
    }
}

/* One item, in the first pass computed and in the second put together. True when it is cut. */
static bool visit(struct work *w, uint32_t pass)
{
    const uint32_t nth = w->x->nth, ith = w->x->ith;
    const uint64_t cost = item_cost(&w->it);
    const struct cut own = cut_of(w, cost, ith);
    const bool whole = w->it.seq->n_query > 1 || w->a->soft_cap > 0 || w->a->head_dim > DIM_MAX ||
                       nth > THREADS_MAX;
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
    const size_t room = ((size_t)a->context_max + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    struct work w = {.a = a, .x = x, .it = {.s = x->scratch}};
    bool any_cut = false;
    w.it.sum_stride = ((size_t)a->head_dim + 15) / 16 * 16;
    w.it.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    w.it.q = w.it.s + ROWS * room;
    w.it.sum = w.it.q + ROWS * w.it.sum_stride;
    for (uint32_t pass = 0; pass < 3; pass++) { /* 0: the total; 1: compute; 2: put together */
        w.done = 0;
        for (uint32_t s = 0; s < a->n_seq; s++)
            for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], ROWS); i++) {
                item_init(&w.it, a, s, i, ROWS);
                if (pass == 0)
                    w.total += item_cost(&w.it);
                else
                    any_cut |= visit(&w, pass - 1);
            }
        if (pass == 1 && !any_cut)
            return;
        if (pass == 1)
            meet(x->nth);
    }
}
#endif
