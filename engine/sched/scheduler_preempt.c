/* SPDX-License-Identifier: Apache-2.0 */
/* Swap of a request's keys and values at preemption and at its next admission.
 *
 * Rows in flight are computed before the next step's copies, so the copies out contain all planned
 * rows. The first blocks that other running sequences share are not copied: they stay in the prefix
 * cache while those sequences run. If they are evicted before the request returns, the copied
 * blocks are useless and all rows are recomputed; this rare case delays one request, whereas
 * copying a shared prompt once for each sequence would always cost memory and time. At its next
 * admission a request first takes the cached blocks, then copies fill the rest. A swapped request
 * waits for nothing that a recomputed one would not wait for, so the proof in README.md that the
 * scheduler never deadlocks covers both.
 *
 * Host blocks that a lost worker, a reset of the prefix cache or an abort invalidates are released
 * at once; a copy out that is not in a step yet is cancelled. A request's state (states.h) stays
 * where it is: its row is the request's while it waits with blocks in host memory. */
#include "engine/sched/scheduler_internal.h"

/* A step is mostly prefill that has so many rows for each of its sequences. */
#define PREFILL_ROWS 2u

/* Rows that are valid after the steps in flight; rows of draft tokens may be rejected. */
static uint32_t n_sure(const struct request *r)
{
    return r->n_planned < r->n_token + r->n_sampling ? r->n_planned : r->n_token;
}

/* True if the request's KV is to be copied; *h has the range of blocks. */
static bool is_worth(struct scheduler *s, const struct request *r, struct swap_held *h)
{
    enum preemption_mode mode = s->config.policy.preemption;
    uint32_t n_common = kv_n_common(&s->pool, &r->table), n_row = n_sure(r);
    uint32_t n = kv_blocks_for(n_row);
    if (mode == PREEMPT_RECOMPUTE || n <= n_common)
        return false;
    *h = (struct swap_held){.i_block = n_common, .n_block = n - n_common, .n_row = n_row};
    if (!swap_has_room(&s->swap, h->n_block))
        return false;
    return mode == PREEMPT_SWAP ||
           swap_is_cheaper(&s->swap.costs, h->n_block, n_row - n_common * KV_BLOCK_TOKENS);
}

void scheduler_preempt(struct scheduler *s, uint32_t i_request)
{
    struct request *r = request_at(s, i_request);
    struct swap_held h;
    const bool has_state = r->state_row != STATE_NONE;
    uint32_t held = STATE_NONE;
    if (is_worth(s, r, &h) &&
        (!has_state || kv_hold_state(&s->pool, r->state_row, s->stats.step + 1))) {
        held = r->state_row;
        r->state_row = STATE_NONE;
        swap_out(&s->swap, &h, r->table.blocks + h.i_block);
        r->held = h;
        s->stats.n_swap_out++;
        s->stats.swap_blocks_out += h.n_block;
    }
    scheduler_release_slot(s, i_request);
    r->state_row = held;
    backlog_return(&s->backlog, i_request);
    s->stats.n_preemption++;
}

bool scheduler_preempt_last(struct scheduler *s)
{
    bool any = s->running.n > 0;
    if (any)
        scheduler_preempt(s, s->running.last);
    return any;
}

void scheduler_restore(struct scheduler *s, struct request *r, const struct admission *admission)
{
    r->n_restored = admission->n_in ? r->held.n_row : 0;
    if (!admission->n_in) {
        scheduler_drop_held(s, r);
        return;
    }
    swap_in(&s->swap, &r->held, r->table.blocks, admission->n_shared);
    s->stats.n_swap_in++;
    s->stats.swap_blocks_in += admission->n_in;
}

void scheduler_measure(struct scheduler *s, const struct inflight_step *f,
                       const struct step_result_head *h)
{
    if (f->n_copy)
        swap_measure(&s->swap.costs.copy, f->n_copy, h->copy_us);
    if (f->n_token >= PREFILL_ROWS * f->n_seq)
        swap_measure(&s->swap.costs.row, f->n_token, h->forward_us);
}
