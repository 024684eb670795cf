/* SPDX-License-Identifier: Apache-2.0 */
/* The host blocks of a request are a list through `next`, so a request stores four numbers and no
 * array. Blocks that were used before are taken first, the last released one first; then the lowest
 * block that was never used. So the touched host memory grows from its beginning, up to the maximum
 * that was held at once. */
#include "engine/sched/swap.h"
#include <string.h>
#include "common/mem.h"

#define RATE_KEEP 0.95 /* of the sums, at each measurement */

enum q_code swap_init(struct swap_pool *p, uint32_t n_block, uint32_t copies_max, struct q_err *e)
{
    *p = (struct swap_pool)SWAP_POOL_INIT;
    if (n_block == 0)
        return Q_OK;
    p->next = q_calloc(n_block, sizeof *p->next);
    p->out_at = q_calloc(n_block, sizeof *p->out_at);
    p->seen = q_calloc(n_block, sizeof *p->seen);
    p->outs = q_calloc(copies_max, sizeof *p->outs);
    p->ins = q_calloc(copies_max, sizeof *p->ins);
    if (!p->next || !p->out_at || !p->seen || !p->outs || !p->ins) {
        swap_release(p);
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory for %u blocks of swap space",
                      n_block);
    }
    p->n_block = n_block;
    p->copies_max = copies_max;
    return Q_OK;
}

void swap_release(struct swap_pool *p)
{
    q_free(p->next);
    q_free(p->out_at);
    q_free(p->seen);
    q_free(p->outs);
    q_free(p->ins);
    *p = (struct swap_pool)SWAP_POOL_INIT;
}

static uint32_t take_host_block(struct swap_pool *p)
{
    uint32_t b = p->free;
    if (b == KV_NONE)
        b = p->n_touched++;
    else
        p->free = p->next[b];
    p->n_used++;
    Q_ASSERT(b < p->n_block && !p->out_at[b]);
    return b;
}

static void let_go(struct swap_pool *p, uint32_t b)
{
    p->next[b] = p->free;
    p->free = b;
    p->n_used--;
}

bool swap_has_room(const struct swap_pool *p, uint32_t n_block)
{
    return n_block <= p->n_block - p->n_used && n_block <= p->copies_max - p->n_out;
}

void swap_out(struct swap_pool *p, struct swap_held *h, const kv_block *blocks)
{
    uint32_t *link = &h->first;
    Q_ASSERT(h->n_block && swap_has_room(p, h->n_block));
    p->n_holder++;
    for (uint32_t i = 0; i < h->n_block; i++) {
        uint32_t b = take_host_block(p);
        p->outs[p->n_out++] = (struct step_copy){.block = blocks[i], .host = b};
        p->out_at[b] = p->n_out;
        *link = b;
        link = &p->next[b];
    }
}

uint32_t swap_n_in(const struct swap_held *h, uint32_t n_shared)
{
    uint32_t end = h->i_block + h->n_block;
    return n_shared >= h->i_block && n_shared < end ? end - n_shared : 0;
}

void swap_in(struct swap_pool *p, struct swap_held *h, const kv_block *blocks, uint32_t n_shared)
{
    uint32_t b = h->first;
    p->n_holder -= h->n_block > 0;
    for (uint32_t i = h->i_block; h->n_block; i++, h->n_block--) {
        uint32_t next = p->next[b];
        if (i >= n_shared) {
            Q_ASSERT(p->n_in < p->copies_max);
            p->ins[p->n_in++] = (struct step_copy){.block = blocks[i], .host = b};
        }
        let_go(p, b); /* and if its copy out is not in a step yet, both go into the same one */
        b = next;
    }
}

/* Cancel a planned copy; the last planned copy takes its index. */
static void unplan(struct swap_pool *p, uint32_t b)
{
    uint32_t at = p->out_at[b];
    if (!at)
        return;
    const struct step_copy last = p->outs[--p->n_out];
    p->outs[at - 1] = last;
    p->out_at[last.host] = at;
    p->out_at[b] = 0;
}

void swap_drop(struct swap_pool *p, struct swap_held *h)
{
    uint32_t b = h->first;
    p->n_holder -= h->n_block > 0;
    for (; h->n_block; h->n_block--) {
        uint32_t next = p->next[b];
        unplan(p, b);
        let_go(p, b);
        b = next;
    }
}

void swap_sent(struct swap_pool *p)
{
    for (; p->n_out; p->n_out--)
        p->out_at[p->outs[p->n_out - 1].host] = 0;
    p->n_in = 0;
}

void swap_forget(struct swap_pool *p)
{
    swap_sent(p);
    p->n_used = p->n_touched = p->n_holder = 0;
    p->free = KV_NONE;
}

void swap_measure(struct swap_rate *r, uint32_t n, uint32_t us)
{
    r->n = r->n * RATE_KEEP + n;
    r->us = r->us * RATE_KEEP + us;
}

bool swap_is_cheaper(struct swap_costs *c, uint32_t n_block, uint32_t n_row)
{
    if (c->copy.n > 0 && c->row.n > 0 &&
        2.0 * n_block * (c->copy.us / c->copy.n) > n_row * (c->row.us / c->row.n)) {
        if (++c->n_lost < SWAP_RETRY)
            return false;
        c->copy = (struct swap_rate){0};
    }
    c->n_lost = 0;
    return true;
}

void swap_check_begin(const struct swap_pool *p)
{
    if (p->n_block)
        memset(p->seen, 0, p->n_block * sizeof *p->seen);
}

void swap_check_held(const struct swap_pool *p, const struct swap_held *h)
{
    uint32_t b = h->first;
    for (uint32_t i = 0; i < h->n_block; i++, b = p->next[b])
        Q_ASSERT(b < p->n_touched && p->seen[b]++ == 0);
    Q_ASSERT(!h->n_block || kv_blocks_for(h->n_row) == h->i_block + h->n_block);
}

void swap_check_end(const struct swap_pool *p)
{
    uint32_t n_held = 0, n_free = 0, n_pending = 0;
    for (uint32_t b = 0; b < p->n_block; b++) {
        n_held += p->seen[b];
        Q_ASSERT(!p->out_at[b] || p->outs[p->out_at[b] - 1].host == b);
        n_pending += p->out_at[b] != 0;
    }
    for (uint32_t b = p->free; b != KV_NONE; b = p->next[b], n_free++)
        Q_ASSERT(b < p->n_touched && p->seen[b]++ == 0);
    Q_ASSERT(n_held == p->n_used && n_held + n_free == p->n_touched);
    Q_ASSERT(n_pending == p->n_out && p->n_in == 0 && p->n_out <= p->copies_max);
}
