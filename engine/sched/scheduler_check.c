/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "engine/sched/scheduler_internal.h"

static const struct request *get(const struct scheduler *s, uint32_t i)
{
    Q_ASSERT(i < s->requests.n_item);
    return &s->requests.items[i];
}

/* Tokens of a request that steps in flight will sample. */
static uint32_t count_sampling(const struct scheduler *s, uint32_t i_request)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < s->n_inflight; k++) {
        const struct inflight_step *f =
            &s->inflight_steps[(s->i_inflight + k) % SCHEDULER_IN_FLIGHT_MAX];
        for (uint32_t j = 0; j < f->n_seq; j++)
            n += !f->seqs[j].is_dropped && f->seqs[j].i_request == i_request &&
                 f->seqs[j].use == get(s, i_request)->use && (f->seqs[j].flags & STEP_SAMPLE);
    }
    return n;
}

static void check_request(const struct scheduler *s, uint32_t i)
{
    const struct request *r = get(s, i);
    Q_ASSERT(r->n_prompt >= 1 && r->n_prompt <= r->n_token && r->n_token < r->n_max);
    Q_ASSERT(r->n_max <= s->config.limits.max_model_len);
    Q_ASSERT(r->n_planned <=
             r->n_token + r->n_sampling + (r->n_sampling ? scheduler_draft_tokens(s, r) : 0));
    Q_ASSERT(r->n_token + r->n_sampling <= r->n_max);
    Q_ASSERT(r->n_sampling <= SCHEDULER_IN_FLIGHT_MAX);
    Q_ASSERT(r->prompt_settled <= r->prompt_next && r->prompt_next <= r->n_prompt);
}

/* The running ones: links, states, and the order of rule 1. */
static void check_running(const struct scheduler *s)
{
    const struct request_list *l = &s->running;
    uint32_t n = 0, n_constrained = 0, prev = REQUEST_NONE, after = s->backlog.returned.first;
    for (uint32_t i = l->first; i != REQUEST_NONE; i = get(s, i)->next) {
        const struct request *r = get(s, i);
        Q_ASSERT(r->state == REQUEST_RUNNING && r->prev == prev && ++n <= l->n && r->admission_seq);
        Q_ASSERT(prev == REQUEST_NONE || request_before(get(s, prev), r));
        n_constrained += r->params.grammar != 0;
        prev = i;
    }
    Q_ASSERT(n == l->n && l->last == prev && n_constrained == s->n_constrained);
    Q_ASSERT(prev == REQUEST_NONE || after == REQUEST_NONE || s->suspecting ||
             request_before(get(s, prev), get(s, after)));
    Q_ASSERT(!s->suspecting || n <= 1);
    uint32_t adapters[SCHEDULER_LORAS_MAX];
    Q_ASSERT(!s->config.max_loras || scheduler_adapters(s, adapters) <= s->config.max_loras);
}

static void check_slots(const struct scheduler *s)
{
    uint32_t n_slot = s->config.limits.max_num_seqs;
    Q_ASSERT(s->n_free_slot + s->running.n == n_slot);
    for (uint32_t i = 0; i < s->n_free_slot; i++) {
        Q_ASSERT(s->free_slots[i] < n_slot);
        for (uint32_t j = 0; j < i; j++)
            Q_ASSERT(s->free_slots[i] != s->free_slots[j]);
    }
}

/* Blocks that others may find hold this request's tokens. */
static void check_names(const struct scheduler *s, const struct request *r)
{
    for (uint32_t i = 0; i < r->table.n_block; i++) {
        const struct kv_info *b = &s->pool.infos[r->table.blocks[i]];
        if (!b->indexed)
            continue;
        Q_ASSERT(r->hashes && r->n_hash > i);
        Q_ASSERT(!memcmp(&b->hash, &r->hashes[i + 1], sizeof b->hash));
        Q_ASSERT(i < r->n_shared || (i + 1) * KV_BLOCK_TOKENS <= r->n_planned);
    }
}

void scheduler_check(const struct scheduler *s)
{
    check_running(s);
    backlog_check(&s->backlog);
    request_table_check(&s->requests);
    Q_ASSERT(s->running.n + s->backlog.n + s->requests.free.n == s->requests.n_item);
    for (uint32_t i = 0; i < s->requests.n_item; i++)
        if (get(s, i)->state != REQUEST_FREE)
            check_request(s, i);
    check_slots(s);
    kv_check_begin(&s->pool);
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = get(s, i)->next) {
        const struct request *r = get(s, i);
        Q_ASSERT(r->slot < s->config.limits.max_num_seqs);
        Q_ASSERT(kv_blocks_for(r->n_planned) <= r->table.n_block);
        Q_ASSERT(count_sampling(s, i) == r->n_sampling);
        kv_check_table(&s->pool, &r->table);
        Q_ASSERT((r->state_row == STATE_NONE) == (s->config.limits.n_state == 0));
        check_names(s, r);
    }
    kv_check_end(&s->pool);
    swap_check_begin(&s->swap);
    uint32_t n_holder = 0;
    for (uint32_t i = 0; i < s->requests.n_item; i++)
        if (get(s, i)->state == REQUEST_WAITING) {
            Q_ASSERT(get(s, i)->table.n_block == 0 &&
                     count_sampling(s, i) == get(s, i)->n_sampling);
            swap_check_held(&s->swap, &get(s, i)->held);
            n_holder += get(s, i)->held.n_block > 0;
            Q_ASSERT((get(s, i)->state_row != STATE_NONE) ==
                     (get(s, i)->held.n_block > 0 && s->config.limits.n_state));
            Q_ASSERT(get(s, i)->pending == STATE_NONE);
        } else {
            Q_ASSERT(get(s, i)->held.n_block == 0);
        }
    swap_check_end(&s->swap);
    Q_ASSERT(n_holder == s->swap.n_holder);
    states_check(&s->pool.states, s->running.n, s->config.limits.n_state ? n_holder : 0);
}
