/* SPDX-License-Identifier: Apache-2.0 */
/* share - the panels of a product that a thread computes.
 *
 * Each thread has a range of its own, one contiguous stream of memory (split.h). A thread that is
 * done with it takes panels from the ends of the ranges of others, where the caller allows that
 * (kern_exec.shares): cores are not equally fast (efficiency cores, other programs beside), and
 * all threads would wait for the slowest. No bit depends on which thread computes a panel.
 *
 * What is taken of a thread's range is one word, so that a panel is taken once:
 *     product (40 bits) | panels from the end, by others (12) | from the front, by its owner (12)
 * A word of another product is of a thread that has not begun this one, or has left it because
 * nothing of it is left. Threads: any may take. */
#ifndef QUIRE_KERNELS_TILING_SHARE_H
#define QUIRE_KERNELS_TILING_SHARE_H
#include <stdatomic.h>
#include <stdbool.h>
#include "kernels/ops/ops_share.h"
#include "kernels/tiling/split.h"

#define SHARE_BITS   12u
#define SHARE_PANELS ((1u << SHARE_BITS) - 1) /* of a range, at most */
#define SHARE_ASKED  8u                       /* threads whose ranges are looked at, at most */

struct panels { /* of a product; of one thread */
    const struct kern_exec *x;
    size_t n; /* panels of the product */
    struct range own;
    struct range now; /* those that are next */
    uint32_t i_asked; /* 0: the own range, then others */
    bool is_shared;
    bool takes; /* beyond `now` */
};

static inline uint64_t share_word(uint64_t product, uint64_t behind, uint64_t front)
{
    return product << 2 * SHARE_BITS | behind << SHARE_BITS | front;
}

/* Begin the product, unless it has begun. */
static inline struct panels panels_of(size_t n, const struct kern_exec *x)
{
    struct panels p = {.x = x, .n = n, .own = split(n, x)};
    p.is_shared = x->shares && n / x->nth < SHARE_PANELS;
    if (!p.is_shared)
        return p;
    _Atomic uint64_t *word = &x->shares[x->ith].word;
    if (atomic_load_explicit(word, memory_order_relaxed) >> 2 * SHARE_BITS != x->product)
        atomic_store_explicit(word, share_word(x->product, 0, 0), memory_order_relaxed);
    return p;
}

/* Go through them, from the first on. last: for the last time in this product, so that those of
 * others may be taken. */
static inline void panels_start(struct panels *p, bool last)
{
    p->takes = last && p->is_shared;
    p->now = p->takes ? (struct range){0, 0} : p->own;
    p->i_asked = 0;
}

/* Take half of what is left of the range of thread `owner`, at least one panel: few times, because
 * an atomic operation waits for the loads before it, and so that both halves end about together. */
static inline bool panels_take(struct panels *p, uint32_t owner)
{
    const struct kern_exec whose = {.ith = owner, .nth = p->x->nth};
    const struct range r = split(p->n, &whose);
    const bool is_own = owner == p->x->ith;
    _Atomic uint64_t *word = &p->x->shares[owner].word;
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed), taken;
    struct range some;
    do {
        const size_t front = old & SHARE_PANELS, behind = old >> SHARE_BITS & SHARE_PANELS;
        if (old >> 2 * SHARE_BITS != p->x->product || front + behind >= r.end - r.begin)
            return false;
        const size_t n = (r.end - r.begin - front - behind + 1) / 2;
        some.begin = is_own ? r.begin + front : r.end - behind - n;
        some.end = some.begin + n;
        taken = share_word(p->x->product, behind + (is_own ? 0 : n), front + (is_own ? n : 0));
    } while (!atomic_compare_exchange_weak_explicit(word, &old, taken, memory_order_relaxed,
                                                    memory_order_relaxed));
    p->now = some;
    return true;
}

static inline bool panels_next(struct panels *p, size_t *panel)
{
    const uint32_t nth = p->x->nth, apart = (nth + SHARE_ASKED - 1) / SHARE_ASKED;
    while (p->takes && p->now.begin == p->now.end && p->i_asked * apart < nth)
        p->i_asked += !panels_take(p, (p->x->ith + p->i_asked * apart) % nth);
    *panel = p->now.begin;
    p->now.begin += p->now.begin < p->now.end;
    return *panel < p->now.end;
}

/* The panel that probably follows: what to prefetch. */
static inline size_t panels_after(const struct panels *p, size_t panel)
{
    return panel + 1 < (p->takes ? p->n : p->own.end) ? panel + 1 : p->own.begin;
}

#endif
