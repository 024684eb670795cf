/* SPDX-License-Identifier: Apache-2.0 */
/* A request's life: submit (here) → backlog → scheduler_plan.c admits it to a slot → running →
 * scheduler_settle.c appends its tokens and detects its end. Meanwhile it may lose its slot
 * (preempted, worker lost) and return to the backlog, or be aborted. Rows in flight of a removed
 * request are recognised by the entry's use count and dropped. */
#include "engine/sched/scheduler.h"
#include <string.h>
#include "common/mem.h"
#include "engine/sched/scheduler_internal.h"

static enum q_code check_config(const struct scheduler_config *c, struct q_err *e)
{
    const struct step_limits *l = &c->limits;
    const struct {
        const char *name;
        uint32_t value, min;
    } at_least[] = {
        {"max_num_seqs", l->max_num_seqs, 1},
        {"max_num_batched_tokens", l->max_num_batched_tokens, 1},
        {"max_model_len", l->max_model_len, 2}, /* a prompt token and a new one */
        {"logit_rows_max", l->logit_rows_max, l->max_num_seqs},
        {"known_max", l->known_max, l->max_model_len},
        {"queue_max", c->queue_max, 1},
        {"vocab_size", c->vocab_size, 1},
    };
    for (size_t i = 0; i < sizeof at_least / sizeof *at_least; i++)
        if (at_least[i].value < at_least[i].min)
            return q_fail(e, Q_INVALID, "%s: expected at least %u, got %u", at_least[i].name,
                          at_least[i].min, at_least[i].value);
    const struct scheduler_policy *p = &c->policy;
    if (p->max_num_partial_prefills && p->max_long_partial_prefills > p->max_num_partial_prefills)
        return q_fail(
            e, Q_INVALID,
            "max_long_partial_prefills: expected at most max_num_partial_prefills (%u), got %u",
            p->max_num_partial_prefills, p->max_long_partial_prefills);
    if (p->long_prefill_token_threshold > l->max_model_len)
        return q_fail(e, Q_INVALID,
                      "long_prefill_token_threshold: expected at most max_model_len (%u), got %u",
                      l->max_model_len, p->long_prefill_token_threshold);
    if (c->n_eos > STEP_EOS_MAX)
        return q_fail(e, Q_INVALID, "eos ids: expected at most %u, got %u", STEP_EOS_MAX, c->n_eos);
    if (c->n_draft_token > SCHEDULER_DRAFT_TOKENS_MAX)
        return q_fail(e, Q_INVALID, "draft tokens: expected at most %u, got %u",
                      SCHEDULER_DRAFT_TOKENS_MAX, c->n_draft_token);
    if (c->n_forced > SCHEDULER_DRAFT_TOKENS_MAX)
        return q_fail(e, Q_INVALID, "draft tokens with a grammar: expected at most %u, got %u",
                      SCHEDULER_DRAFT_TOKENS_MAX, c->n_forced);
    if ((uint64_t)c->queue_max + l->max_num_seqs > REQUESTS_MAX)
        return q_fail(e, Q_INVALID,
                      "queue_max: expected at most %u together with max_num_seqs, got %u",
                      REQUESTS_MAX, c->queue_max);
    if (l->n_state && l->n_state < l->max_num_seqs)
        return q_fail(e, Q_INVALID, "states: expected one for each of max_num_seqs %u, got %u",
                      l->max_num_seqs, l->n_state);
    if (l->n_state && (c->n_draft_token || c->n_forced))
        return q_fail(
            e, Q_INVALID,
            "draft tokens: expected 0 for a model with states, which a rejected one would "
            "change");
    if ((uint64_t)c->n_block * KV_BLOCK_TOKENS < l->max_model_len)
        return q_fail(e, Q_INVALID,
                      "max_model_len: %u tokens need %u KV blocks, but there are %u: increase the "
                      "KV cache, or set max_model_len to at most %u",
                      l->max_model_len, kv_blocks_for(l->max_model_len), c->n_block,
                      c->n_block * KV_BLOCK_TOKENS);
    if (c->n_swap_block && l->copies_max < kv_blocks_for(l->max_model_len))
        return q_fail(e, Q_INVALID, "copies_max: expected at least %u for swapping, got %u",
                      kv_blocks_for(l->max_model_len), l->copies_max);
    size_t step_bytes, result_bytes;
    return step_bytes_max(&step_bytes, &result_bytes, l, e);
}

static enum q_code init(struct scheduler *s, const struct scheduler_config *c, struct q_err *e)
{
    const struct step_limits *l = &c->limits;
    enum q_code rc;
    s->config = *c;
    s->deadline_us = INT64_MAX;
    if (c->policy.max_num_partial_prefills > 1 && c->policy.long_prefill_token_threshold == 0)
        s->config.policy.long_prefill_token_threshold =
            l->max_model_len > 25 ? l->max_model_len / 25 : 1;
    s->running = (struct request_list)REQUEST_LIST_INIT;
    uint32_t *eos_ids = q_calloc(c->n_eos, sizeof *eos_ids);
    s->config.eos_ids = eos_ids;
    s->free_slots = q_calloc(l->max_num_seqs, sizeof *s->free_slots);
    s->sharing = q_calloc(c->queue_max + l->max_num_seqs, sizeof *s->sharing);
    bool have_all = eos_ids && s->free_slots && s->sharing;
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++) {
        s->inflight_steps[i].seqs = q_calloc(l->max_num_seqs, sizeof *s->inflight_steps[i].seqs);
        s->inflight_steps[i].by_slot =
            q_calloc(l->max_num_seqs, sizeof *s->inflight_steps[i].by_slot);
        have_all = have_all && s->inflight_steps[i].seqs && s->inflight_steps[i].by_slot;
    }
    if (!have_all)
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory for %u sequences", l->max_num_seqs);
    if (c->n_eos)
        memcpy(eos_ids, c->eos_ids, c->n_eos * sizeof *eos_ids);
    for (uint32_t i = 0; i < l->max_num_seqs; i++) /* slot 0 first */
        s->free_slots[i] = l->max_num_seqs - 1 - i;
    s->n_free_slot = l->max_num_seqs;
    if (c->prefix_cache && (rc = prefix_hasher_init(&s->hasher, e)))
        return rc;
    if ((rc = kv_init(&s->pool, c->n_block, l->max_num_seqs, kv_blocks_for(l->max_model_len), e)))
        return rc;
    if ((rc = states_init(&s->pool.states, l->n_state, l->max_num_seqs, e)) ||
        (rc = swap_init(&s->swap, c->n_swap_block, l->copies_max, e)))
        return rc;
    if ((rc = request_table_init(&s->requests, c->queue_max + l->max_num_seqs, e)))
        return rc;
    s->requests.hashing = c->prefix_cache;
    return backlog_init(&s->backlog, &s->requests, c->policy.by_priority, e);
}

enum q_code scheduler_new(struct scheduler **out, const struct scheduler_config *c, struct q_err *e)
{
    enum q_code rc = check_config(c, e);
    if (rc)
        return rc;
    struct scheduler *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory");
    rc = init(s, c, e);
    if (rc)
        scheduler_free(s);
    else
        *out = s;
    return rc;
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++) {
        q_free(s->inflight_steps[i].seqs);
        q_free(s->inflight_steps[i].by_slot);
    }
    q_free((void *)(uintptr_t)s->config.eos_ids);
    q_free(s->free_slots);
    q_free(s->sharing);
    prefix_hasher_release(&s->hasher);
    kv_release(&s->pool);
    swap_release(&s->swap);
    backlog_release(&s->backlog);
    request_table_release(&s->requests);
    q_free(s);
}

static enum q_code bad_id(const char *name, uint32_t id, size_t at, uint32_t vocab_size,
                          struct q_err *e)
{
    return q_fail(e, Q_INVALID, "%s: token id %d at position %zu is not in the vocabulary (0 … %u)",
                  name, (int)id, at, vocab_size - 1);
}

static enum q_code check_ids(const char *name, const struct proto_u32s *ids, uint32_t vocab_size,
                             struct q_err *e)
{
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] >= vocab_size)
            return bad_id(name, ids->data[i], i, vocab_size, e);
    return Q_OK;
}

/* Where an item has rows, ids are placeholders. */
static enum q_code check_prompt_ids(const struct msg_submit *m, uint32_t vocab_size,
                                    struct q_err *e)
{
    uint32_t n_item, i_item = 0;
    uint64_t offset;
    const struct step_item *items = step_items_get(m, &n_item, &offset);
    for (uint32_t i = 0; i < m->prompt.n; i++)
        if (m->prompt.data[i] >= vocab_size && !step_items_have(items, n_item, &i_item, i))
            return bad_id("prompt", m->prompt.data[i], i, vocab_size, e);
    return Q_OK;
}

/* Reject requests that can never finish, so that every accepted request finishes (README.md). */
static enum q_code check_submit(const struct scheduler *s, const struct msg_submit *m,
                                struct q_err *e)
{
    uint32_t max_len = s->config.limits.max_model_len;
    struct sample_params p;
    enum q_code rc;
    if (m->prompt.n == 0)
        return q_fail(e, Q_INVALID, "prompt: is empty, expected at least one token");
    if (m->prompt.n >= max_len)
        return q_fail(e, Q_INVALID,
                      "prompt: %zu tokens leave no room for an answer; the limit for prompt and "
                      "answer together is %u tokens (max_model_len)",
                      m->prompt.n, max_len);
    if (m->weight > BACKLOG_WEIGHT_MAX)
        return q_fail(e, Q_INVALID, "weight: expected at most %u, got %u", BACKLOG_WEIGHT_MAX,
                      m->weight);
    size_t room = max_len - m->prompt.n < m->max_tokens ? max_len - m->prompt.n : m->max_tokens;
    if (m->emitted.n && m->emitted.n >= room)
        return q_fail(e, Q_INVALID,
                      "emitted: %zu tokens leave no tokens to generate (max_tokens %u, prompt %zu, "
                      "max_model_len %u)",
                      m->emitted.n, m->max_tokens, m->prompt.n, max_len);
    if ((rc = sample_params_from_submit(&p, m, e)) ||
        (rc = sample_params_check(&p, s->config.vocab_size, e)) ||
        (rc = check_prompt_ids(m, s->config.vocab_size, e)))
        return rc;
    uint64_t n_top = (p.n_logprob == SAMPLE_NO_LOGPROBS ? 0 : p.n_logprob) +
                     (uint64_t)(p.n_prompt_logprob == SAMPLE_NO_LOGPROBS ? 0 : p.n_prompt_logprob);
    if (n_top > step_top_max(&s->config.limits))
        return q_fail(e, Q_INVALID,
                      "logprobs: %llu alternatives, including prompt_logprobs, exceed the limit of "
                      "a step, %llu",
                      (unsigned long long)n_top,
                      (unsigned long long)step_top_max(&s->config.limits));
    return check_ids("emitted", &m->emitted, s->config.vocab_size, e);
}

/* The output of scheduler_take_end for a request; the request is removed. */
static struct scheduler_output end_output(struct scheduler *s, uint32_t i_request, enum q_code code)
{
    const struct request *r = request_at(s, i_request);
    uint32_t n_output = r->n_token - r->n_prompt;
    const struct scheduler_output o = {
        .frontend_id = r->frontend_id,
        .req_id = r->req_id,
        .seq = n_output,
        .finish = n_output ? FINISH_ABORT : FINISH_ERROR,
        .queue_us = r->queue_us,
        .code = code,
    };
    scheduler_forget(s, i_request);
    return o;
}

/* Requests that the next step takes out of the queue, if it gets them: when the last plan left none
 * there, as many as there are free slots. */
static uint32_t n_admissible(const struct scheduler *s)
{
    return (s->n_left && s->backlog.n) || s->suspecting || s->closed ? 0 : s->n_free_slot;
}

/* Has the queue room for a request of n_token tokens when one of n_gone has gone? */
static bool has_place(const struct scheduler *s, uint64_t n_token, uint64_t n_gone)
{
    const uint64_t most = s->config.queue_token_max;
    const uint32_t n = s->backlog.n - (n_gone > 0);
    return n < s->config.queue_max + n_admissible(s) &&
           (!most || !n || s->backlog.n_token - n_gone + n_token <= most);
}

/* Room in the queue for one more of this tenant, if need be by ending one of a tenant with more. */
static enum q_code make_place(struct scheduler *s, const struct msg_submit *m, struct q_err *e)
{
    const uint64_t n_token = m->prompt.n + m->emitted.n;
    if (has_place(s, n_token, 0))
        return Q_OK;
    uint32_t i = s->ended.code ? REQUEST_NONE : backlog_last_of_many(&s->backlog, m->tenant);
    if (i == REQUEST_NONE || !has_place(s, n_token, request_at(s, i)->n_token))
        return q_fail(e, Q_NO_SPACE,
                      "the queue is full with %u waiting requests of %llu tokens; retry later",
                      s->backlog.n, (unsigned long long)s->backlog.n_token);
    s->ended = end_output(s, i, Q_NO_SPACE);
    s->stats.n_pushed_out++;
    return Q_OK;
}

static void set_deadline(struct scheduler *s, struct request *r, uint64_t age_ms)
{
    int64_t timeout_us = s->config.policy.request_timeout_us;
    if (!timeout_us)
        return;
    int64_t age_us = age_ms <= (uint64_t)timeout_us / 1000 ? (int64_t)age_ms * 1000 : timeout_us;
    r->deadline_us = r->submit_us + timeout_us - age_us;
    if (r->deadline_us < s->deadline_us)
        s->deadline_us = r->deadline_us;
}

bool scheduler_take_end(struct scheduler *s, int64_t now_us, struct scheduler_output *out)
{
    if (s->ended.code) {
        *out = s->ended;
        s->ended.code = Q_OK;
        return true;
    }
    if (now_us < s->deadline_us)
        return false;
    int64_t next_us = INT64_MAX;
    for (uint32_t i = 0; i < s->requests.n_item; i++) {
        const struct request *r = request_at(s, i);
        if (r->state == REQUEST_FREE)
            continue;
        if (r->deadline_us <= now_us) {
            *out = end_output(s, i, Q_TIMEOUT);
            s->stats.n_timeout++;
            return true; /* deadline_us stays: the next call looks for more */
        }
        next_us = r->deadline_us < next_us ? r->deadline_us : next_us;
    }
    s->deadline_us = next_us;
    return false;
}

int64_t scheduler_deadline_us(const struct scheduler *s)
{
    return s->ended.code ? INT64_MIN : s->deadline_us;
}

enum q_code scheduler_submit(struct scheduler *s, uint32_t frontend_id, const struct msg_submit *m,
                             int64_t now_us, struct q_err *e)
{
    uint32_t i;
    enum q_code rc = check_submit(s, m, e);
    if (rc)
        return rc;
    if (request_find(&s->requests, frontend_id, m->req_id) != REQUEST_NONE)
        return q_fail(e, Q_MISMATCH, "req_id %llu is already in use",
                      (unsigned long long)m->req_id);
    if ((rc = make_place(s, m, e)))
        return rc;
    uint64_t n_max = (uint64_t)m->prompt.n + m->max_tokens;
    if (n_max > s->config.limits.max_model_len)
        n_max = s->config.limits.max_model_len;
    if ((rc = request_add(&s->requests, &i, frontend_id, m, (uint32_t)n_max, e)))
        return rc;
    request_at(s, i)->submit_us = now_us;
    set_deadline(s, request_at(s, i), m->age_ms);
    cache_root(s, i, m);
    backlog_enter(&s->backlog, i, m->tenant, m->weight ? m->weight : 1);
    return Q_OK;
}

void scheduler_release_slot(struct scheduler *s, uint32_t i_request)
{
    struct request *r = request_at(s, i_request);
    Q_ASSERT(r->state == REQUEST_RUNNING);
    kv_drop(&s->pool, &r->table);
    scheduler_release_state(s, r);
    s->free_slots[s->n_free_slot++] = r->slot;
    request_list_remove(&s->requests, &s->running, i_request);
    s->n_constrained -= request_at(s, i_request)->params.grammar != 0;
    r->state = REQUEST_WAITING;
    r->n_planned = 0;
    r->publish_at = UINT32_MAX;
}

void scheduler_forget(struct scheduler *s, uint32_t i_request)
{
    if (request_at(s, i_request)->state == REQUEST_RUNNING)
        scheduler_release_slot(s, i_request);
    else
        backlog_remove(&s->backlog, i_request);
    scheduler_drop_held(s, request_at(s, i_request));
    backlog_leave(&s->backlog, i_request);
    request_remove(&s->requests, i_request);
}

bool scheduler_abort(struct scheduler *s, uint32_t frontend_id, uint64_t req_id)
{
    uint32_t i = request_find(&s->requests, frontend_id, req_id);
    if (i == REQUEST_NONE)
        return false;
    scheduler_forget(s, i);
    s->stats.n_aborted++;
    return true;
}

uint32_t scheduler_abort_frontend(struct scheduler *s, uint32_t frontend_id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->requests.n_item; i++)
        if (request_at(s, i)->state != REQUEST_FREE &&
            request_at(s, i)->frontend_id == frontend_id) {
            scheduler_forget(s, i);
            n++;
        }
    s->stats.n_aborted += n;
    return n;
}

/* Running requests publish nothing more: the first blocks of theirs, and the rows so far of the
 * next, are of before the reset. Swapped ones would when they are back. */
void scheduler_reset_prefix_cache(struct scheduler *s)
{
    kv_forget(&s->pool);
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = request_at(s, i)->next)
        request_at(s, i)->publish_at = UINT32_MAX;
    for (uint32_t i = s->backlog.returned.first; i != REQUEST_NONE; i = request_at(s, i)->next)
        scheduler_drop_held(s, request_at(s, i));
}

void scheduler_close(struct scheduler *s, bool closed)
{
    s->closed = closed;
}

bool scheduler_end_next(struct scheduler *s, struct scheduler_output *out)
{
    for (uint32_t i = 0; i < s->requests.n_item; i++) {
        if (request_at(s, i)->state == REQUEST_FREE)
            continue;
        *out = end_output(s, i, Q_OK);
        out->finish = FINISH_ABORT;
        s->stats.n_aborted++;
        return true;
    }
    return false;
}

uint32_t scheduler_adapters(const struct scheduler *s, uint32_t used[SCHEDULER_LORAS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = s->requests.items[i].next) {
        const uint32_t adapter = s->requests.items[i].adapter;
        uint32_t k = 0;
        while (k < n && used[k] != adapter)
            k++;
        if (adapter && k == n && n < SCHEDULER_LORAS_MAX)
            used[n++] = adapter;
    }
    return n;
}

uint32_t scheduler_count_adapter(const struct scheduler *s, uint32_t adapter, bool running)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->requests.n_item; i++) {
        const struct request *r = &s->requests.items[i];
        const bool counts = running ? r->state == REQUEST_RUNNING : r->state != REQUEST_FREE;
        n += counts && r->adapter == adapter;
    }
    return n;
}

bool scheduler_end_adapter(struct scheduler *s, uint32_t adapter, struct scheduler_output *out)
{
    for (uint32_t i = 0; i < s->requests.n_item; i++) {
        const struct request *r = request_at(s, i);
        if (r->state == REQUEST_FREE || r->adapter != adapter)
            continue;
        *out = end_output(s, i, Q_OK);
        out->finish = FINISH_ERROR;
        s->stats.n_aborted++;
        return true;
    }
    return false;
}

void scheduler_worker_lost(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_inflight; i++) {
        struct inflight_step *f = &s->inflight_steps[(s->i_inflight + i) % SCHEDULER_IN_FLIGHT_MAX];
        for (uint32_t j = 0; j < f->n_seq; j++)
            f->by_slot[f->seqs[j].slot] = 0;
    }
    s->n_inflight = 0;
    /* The last first: each is then the first of the backlog, but for one on trial. */
    while (s->running.n) {
        uint32_t i = s->running.last;
        scheduler_release_slot(s, i);
        backlog_return(&s->backlog, i);
    }
    for (uint32_t i = s->backlog.returned.first; i != REQUEST_NONE; i = request_at(s, i)->next) {
        struct request *r = request_at(s, i); /* preempted ones may have had tokens in flight too */
        r->n_sampling = 0;
        r->prompt_next = r->prompt_settled;
        r->held.n_block = 0;
        scheduler_release_state(s, r);
    }
    swap_forget(&s->swap);
    kv_forget(&s->pool); /* the blocks' memory was the worker's */
}

void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out)
{
    *out = s->stats;
    out->n_running = s->running.n;
    out->n_swapped = s->swap.n_holder;
    out->n_waiting = s->backlog.n - out->n_swapped;
    out->n_begun = s->running.n + s->backlog.returned.n;
    out->n_waiting_token = s->backlog.n_token;
    out->n_prefill_token = 0;
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = s->requests.items[i].next) {
        const struct request *r = &s->requests.items[i];
        out->n_prefill_token += r->n_planned + 1 < r->n_token ? r->n_token - r->n_planned - 1 : 0;
    }
    out->n_tenant = backlog_n_tenant(&s->backlog);
    out->n_in_flight = s->n_inflight;
    out->kv_blocks_total = s->pool.n_block;
    out->kv_blocks_used = s->pool.n_block - kv_available(&s->pool);
    out->kv_blocks_cached = s->pool.n_cached;
    out->swap_blocks_used = s->swap.n_used;
    out->swap_blocks_total = s->swap.n_block;
}
