/* SPDX-License-Identifier: Apache-2.0 */
/* States of requests that are no K and V: with which one a request begins, and where it leaves
 * snapshots.
 *
 * K and V of a block are of its tokens and serve every request that begins with them; a state is
 * of all tokens so far, so it serves only where it was taken. Snapshots are taken
 *
 *     behind the last block that the request found in the cache, if it has to compute rows before:
 *         there another prompt goes on differently (a system prompt ends), and so may the next;
 *     behind the last full block of its history, for the same prompt, or one that goes on from it;
 *     behind each block of its output, in place of the one before, for the next turn of a
 *         conversation, and for its own return after a preemption.
 *
 * A request shares all cached blocks of its history but begins at the last snapshot; rows from
 * there to the end of the shared blocks are computed for the state alone and store no K and V
 * (step_admit.n_cached).
 *
 * A worker copies a snapshot in the middle of its rows of a step, so snapshots change no chunk.
 * They are found from the step after the one that writes them on. Of a request that is gone, the
 * rows in flight are computed all the same (cache.c), so its snapshots are there. */
#include "engine/sched/scheduler_internal.h"

static uint64_t next_step(const struct scheduler *s)
{
    return s->stats.step + 1;
}

void scheduler_find_state(const struct scheduler *s, const struct request *r,
                          struct admission *admission, uint32_t n_most)
{
    if (admission->n_in && r->state_row != STATE_NONE && admission->start == r->held.n_row) {
        admission->state_from = r->state_row;
        return;
    }
    uint32_t n = 0;
    admission->n_in = 0;
    if (r->hashes)
        n = kv_match_state(&s->pool, r->hashes + 1, n_most, next_step(s), &admission->state_from);
    if (n == 0)
        admission->state_from = STEP_STATE_ZERO;
    admission->start = n * KV_BLOCK_TOKENS;
}

void scheduler_admit_state(struct scheduler *s, struct request *r,
                           const struct admission *admission)
{
    struct state_pool *p = &s->pool.states;
    const uint32_t n_begin = admission->start / KV_BLOCK_TOKENS;
    if (r->state_row != STATE_NONE) {
        states_resume(p, r->state_row);
    } else {
        r->state_row = states_take(p);
        if (admission->state_from != STEP_STATE_ZERO)
            states_use(p, admission->state_from, next_step(s));
    }
    r->state_from = admission->state_from;
    r->n_history = r->n_token;
    r->snapshot_at[0] = admission->n_shared > n_begin ? admission->n_shared : 0;
    r->snapshot_at[1] = (r->n_token - 1) / KV_BLOCK_TOKENS;
    if (r->snapshot_at[0] >= r->snapshot_at[1])
        r->snapshot_at[0] = 0; /* the last one is near */
}

/* ---- snapshots ---- */

static void add_snapshot(struct scheduled_seq *q, uint32_t n_block, uint32_t state)
{
    Q_ASSERT(q->n_snapshot < STEP_SEQ_SNAPSHOTS);
    q->snapshots[q->n_snapshot++] = (struct step_snapshot){
        .position = n_block * KV_BLOCK_TOKENS,
        .state = state,
    };
}

/* Of a prompt, whose blocks have their hashes and are in the index. */
static void snapshot_prompt(struct scheduler *s, struct request *r, struct scheduled_seq *q,
                            uint32_t n_block)
{
    const uint32_t position = n_block * KV_BLOCK_TOKENS;
    if (position <= q->start || position > q->start + q->n_token ||
        kv_has_state(&s->pool, &r->hashes[n_block]))
        return;
    const uint32_t state = kv_take_snapshot(&s->pool, next_step(s));
    if (state != STATE_NONE && kv_attach_snapshot(&s->pool, &r->hashes[n_block], state))
        add_snapshot(q, n_block, state);
}

bool scheduler_attach_pending(struct scheduler *s, struct request *r)
{
    const uint32_t i = r->pending_block, state = r->pending;
    if (state == STATE_NONE || i >= r->n_hash)
        return false;
    r->pending = STATE_NONE;
    if (!kv_attach_snapshot(&s->pool, &r->hashes[i + 1], state))
        return false;
    if (r->rolling != STATE_NONE)
        kv_drop_unused(&s->pool, r->rolling, r->rolling_block, next_step(s));
    r->rolling = state;
    r->rolling_block = s->pool.states.infos[state].block;
    return true;
}

/* Of a block of output. The token of its last row may be in flight: then the block gets its hash,
 * and the snapshot its block, when that is settled. */
static void snapshot_output(struct scheduler *s, struct request *r, struct scheduled_seq *q)
{
    const uint32_t end = q->start + q->n_token, n_block = end / KV_BLOCK_TOKENS;
    const bool is_known = n_block <= r->n_hash;
    if (q->start < r->n_history || end % KV_BLOCK_TOKENS ||
        (is_known && kv_has_state(&s->pool, &r->hashes[n_block])))
        return;
    const uint32_t state = kv_take_snapshot(&s->pool, next_step(s));
    if (state == STATE_NONE)
        return;
    states_drop(&s->pool.states, r->pending);
    r->pending = state;
    r->pending_block = n_block - 1;
    const bool is_attached = scheduler_attach_pending(s, r);
    if (is_attached || !is_known)
        add_snapshot(q, n_block, state);
}

void scheduler_snapshot(struct scheduler *s, struct request *r, struct scheduled_seq *q)
{
    if (!s->config.limits.n_state || !r->hashes || r->publish_at == UINT32_MAX)
        return;
    for (uint32_t i = 0; i < 2; i++)
        if (r->snapshot_at[i])
            snapshot_prompt(s, r, q, r->snapshot_at[i]);
    snapshot_output(s, r, q);
}

/* ---- the end ---- */

void scheduler_release_state(struct scheduler *s, struct request *r)
{
    states_drop(&s->pool.states, r->state_row);
    states_drop(&s->pool.states, r->pending);
    r->state_row = r->pending = r->rolling = STATE_NONE;
}

void scheduler_drop_held(struct scheduler *s, struct request *r)
{
    swap_drop(&s->swap, &r->held);
    scheduler_release_state(s, r);
}
