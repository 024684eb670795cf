/* SPDX-License-Identifier: Apache-2.0 */
/* Filling one step: four passes share the remaining rows, logits rows, blocks, slots and known_max,
 * and each tenant's rows are within its share (scheduler_share.c).
 *
 *   1. decode    running sequences with one row to compute, in order of request_before. One that
 *                needs a block when none is free preempts the last running one
 *                (scheduler_preempt.c); the last one waits and keeps its blocks.
 *   2. prefill   running sequences with more rows, in the same order, a chunk each. They have their
 *                blocks already.
 *   3. admit     waiting sequences in the backlog's order, with blocks for their whole known
 *                history; while suspects are tried (scheduler_suspect.c), one suspect only.
 *   4. drafts    decode rows of this step get the remaining rows and blocks for draft tokens: no
 *                sequence waits or is preempted for a draft token.
 *
 * A sequence gets blocks for its whole history at admission, and not for each chunk: so only decode
 * rows can lack a block, pass 1 goes from the first sequence to the last, a preempted sequence is
 * never in the step being planned, and no half-computed prompt is discarded. The cost: blocks of
 * later chunks are unused for a few steps.
 *
 * A row whose token is still in flight is planned like any other (the worker has the token when it
 * computes the row), unless that token brings the sequence to its maximum length, which is known in
 * advance. An eos is not known in advance; rows after it are dropped at settle. */
#include <string.h>
#include "engine/sched/scheduler_internal.h"

struct planning {
    struct scheduler *s;
    struct inflight_step *f;
    struct step_head counts; /* totals of the step so far */
    int64_t now_us;
    uint64_t n_top;                                /* alternatives that its rows may give */
    uint32_t n_item_row[SCHEDULER_MODALITIES_MAX]; /* of modalities with a limit */
    bool short_of_blocks;               /* a running sequence lacks a block: no admission */
    uint32_t n_partial, n_long_partial; /* in the middle of their prompts after this step */
    bool passes; /* the request that was next may not start, but those of other tenants may */
};

static bool is_decode(const struct request *r)
{
    return r->n_planned >= r->n_prompt && scheduler_rows_left(r) == 1;
}

static uint32_t budget_left(const struct planning *p)
{
    return p->s->config.limits.max_num_batched_tokens - p->counts.n_token;
}

static uint32_t logits_left(const struct planning *p)
{
    return p->s->config.limits.logit_rows_max - p->counts.n_logit;
}

static uint32_t n_alternative(uint32_t n_logprob)
{
    return n_logprob == SAMPLE_NO_LOGPROBS ? 0 : n_logprob;
}

static uint64_t tops_left(const struct planning *p)
{
    return step_top_max(&p->s->config.limits) - p->n_top;
}

/* Alternatives of one sampled row and, if requested, of one row of the prompt. */
static uint64_t tops_least(const struct request *r)
{
    return (uint64_t)n_alternative(r->params.n_logprob) + n_alternative(r->params.n_prompt_logprob);
}

/* Of a sequence's next n rows: how many there are before those of items that are beyond their
 * modality's limit. n_row: [SCHEDULER_MODALITIES_MAX] in the step; counts them, too. */
static uint32_t before_limit(const struct scheduler *s, const struct request *r, uint32_t n,
                             uint32_t *n_row)
{
    const uint32_t end = r->n_planned + n;
    for (uint32_t i = step_items_from(r->items, r->n_item, r->n_planned);
         i < r->n_item && r->items[i].position < end; i++) {
        const struct step_item *item = &r->items[i];
        Q_ASSERT(item->modality < SCHEDULER_MODALITIES_MAX);
        const uint32_t most = s->config.item_rows_max[item->modality];
        const uint32_t first = item->position > r->n_planned ? item->position : r->n_planned;
        const uint32_t item_end = item->position + item->n_token;
        const uint32_t want = (item_end < end ? item_end : end) - first;
        uint32_t *have = &n_row[item->modality];
        if (most && want > most - *have) {
            const uint32_t fit = most - *have;
            *have = most;
            return first + fit - r->n_planned;
        }
        *have += most ? want : 0;
    }
    return n;
}

/* Add a sequence's next n_token rows to the step. The caller has checked the limits. */
static void put_seq(struct planning *p, uint32_t i_request, uint32_t n_token, uint32_t flags,
                    uint32_t n_new_block)
{
    struct request *r = request_at(p->s, i_request);
    uint32_t end = r->n_planned + n_token, n_prompt_row = 0;
    (void)before_limit(p->s, r, n_token, p->n_item_row);
    if (end == r->n_token + r->n_sampling)
        flags |= STEP_SAMPLE;
    if (flags & STEP_PROMPT_LOGPROBS) { /* every row gives the logprob of the next token */
        n_prompt_row = n_token - ((flags & STEP_SAMPLE) != 0);
        r->prompt_next += n_prompt_row;
    }
    p->f->seqs[p->f->n_seq++] = (struct scheduled_seq){
        .i_request = i_request,
        .use = r->use,
        .slot = r->slot,
        .flags = flags,
        .start = r->n_planned,
        .n_token = n_token,
        .n_new_block = n_new_block,
        .n_prompt_row = n_prompt_row,
    };
    p->f->by_slot[r->slot] = p->f->n_seq;
    r->n_planned = end;
    cache_publish(p->s, r);
    struct scheduled_seq *q = &p->f->seqs[p->f->n_seq - 1];
    scheduler_snapshot(p->s, r, q);
    p->counts.n_snapshot += q->n_snapshot;
    r->n_sampling += (flags & STEP_SAMPLE) != 0;
    scheduler_take_share(p->s, r, n_token);
    p->counts.n_token += n_token;
    p->counts.n_logit += flags & STEP_PROMPT_LOGPROBS ? n_token : (flags & STEP_SAMPLE) != 0;
    p->counts.n_block += n_new_block;
    p->n_top += (uint64_t)n_prompt_row * n_alternative(r->params.n_prompt_logprob);
    p->n_top += flags & STEP_SAMPLE ? n_alternative(r->params.n_logprob) : 0;
}

/* Blocks for one more row of a running sequence. False when it has to wait: it is the last. */
static bool make_room(struct planning *p, uint32_t i_request, uint32_t *n_new_block)
{
    struct scheduler *s = p->s;
    struct request *r = request_at(s, i_request);
    *n_new_block = kv_need(&r->table, r->n_planned + 1);
    while (*n_new_block > kv_available(&s->pool)) {
        p->short_of_blocks = true;
        if (s->running.last == i_request)
            return false;
        scheduler_preempt(s, s->running.last);
    }
    enum q_code rc = kv_grow(&s->pool, &r->table, r->n_planned + 1, NULL);
    Q_ASSERT(rc == Q_OK);
    return true;
}

static void plan_decode(struct planning *p)
{
    struct scheduler *s = p->s;
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = request_at(s, i)->next) {
        uint32_t n_new_block;
        if (!is_decode(request_at(s, i)) || scheduler_share_left(s, request_at(s, i)) == 0)
            continue;
        if (budget_left(p) == 0 || logits_left(p) == 0 ||
            tops_left(p) < n_alternative(request_at(s, i)->params.n_logprob) ||
            !make_room(p, i, &n_new_block))
            return;
        put_seq(p, i, 1, 0, n_new_block);
    }
}

/* Number of rows of a prompt (or of a history to recompute) in this step; adds STEP_PROMPT_LOGPROBS
 * to *flags. A chunk requests logprobs for all its positions or for none, and never for positions
 * requested before: a preempted sequence first recomputes up to these. */
static uint32_t chunk_size(const struct planning *p, const struct request *r, uint32_t *flags)
{
    uint32_t n = scheduler_rows_left(r), budget = budget_left(p), logits = logits_left(p);
    uint32_t threshold = p->s->config.policy.long_prefill_token_threshold;
    uint32_t share = scheduler_share_left(p->s, r), n_item_row[SCHEDULER_MODALITIES_MAX];
    if (share == 0 && *flags & STEP_ADMIT) /* a returned one */
        share = 1;
    if (n > budget)
        n = budget;
    if (n > share)
        n = share;
    if (threshold && n > threshold)
        n = threshold;
    memcpy(n_item_row, p->n_item_row, sizeof n_item_row);
    n = before_limit(p->s, r, n, n_item_row);
    if (n == 0 && share && *flags & STEP_ADMIT) /* an admitted request has a row in its step */
        n = 1;
    if (n == 0 || logits == 0 || tops_left(p) < tops_least(r))
        return 0;
    if (p->s->config.whole_prompts)
        return scheduler_rows_left(r) <= budget ? scheduler_rows_left(r) : 0;
    if (r->prompt_next >= r->n_prompt)
        return n;
    if (r->n_planned + 1 < r->prompt_next) {
        uint32_t n_old = r->prompt_next - 1 - r->n_planned;
        return n < n_old ? n : n_old;
    }
    *flags |= STEP_PROMPT_LOGPROBS;
    /* Rows that are followed by a prompt token, or by the token to sample. */
    uint32_t n_given = r->n_prompt - r->n_planned - (r->n_token > r->n_prompt);
    if (n > n_given)
        n = n_given;
    if (r->params.n_prompt_logprob) {
        uint64_t n_fit =
            (tops_left(p) - n_alternative(r->params.n_logprob)) / r->params.n_prompt_logprob;
        n = n < n_fit ? n : (uint32_t)n_fit;
    }
    return n < logits ? n : logits;
}

static bool is_long(const struct scheduler *s, const struct request *r)
{
    uint32_t threshold = s->config.policy.long_prefill_token_threshold;
    return threshold && r->n_token > threshold;
}

/* After its chunk is in: does more of the prompt follow in later steps? */
static void count_partial(struct planning *p, const struct request *r)
{
    uint32_t i = p->f->by_slot[r->slot];
    p->f->has_prompt = true;
    if (i && p->f->seqs[i - 1].flags & STEP_SAMPLE)
        return;
    p->n_partial++;
    scheduler_tenant(p->s, r)->n_partial++;
    p->n_long_partial += is_long(p->s, r);
}

static void plan_prefill(struct planning *p)
{
    struct scheduler *s = p->s;
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = request_at(s, i)->next) {
        struct request *r = request_at(s, i);
        uint32_t flags = 0;
        if (p->f->by_slot[r->slot] || scheduler_rows_left(r) == 0 || is_decode(r))
            continue;
        uint32_t n = chunk_size(p, r, &flags);
        if (n)
            put_seq(p, i, n, flags, 0);
        count_partial(p, r);
    }
}

static uint32_t n_grammar(const struct request *r) /* words */
{
    return r->params.n_grammar / (uint32_t)sizeof(uint32_t);
}

/* Allowed ids, bad words, grammar and thinking budget. */
static uint32_t n_list(const struct request *r)
{
    return r->params.n_allowed + r->params.n_bad + n_grammar(r) + r->params.n_thinking;
}

static bool at_limit(uint32_t n, uint32_t max)
{
    return max && n >= max;
}

/* New requests are held back a while so that prompts are computed together. */
static bool is_delayed(const struct planning *p, const struct request *r)
{
    const struct scheduler *s = p->s;
    return s->config.policy.delay_factor > 0 && r->admission_seq == 0 && s->running.n &&
           (double)(p->now_us - r->submit_us) <=
               s->config.policy.delay_factor * (double)s->last_prompt_us;
}

/* Which request is next: a long one only while there may be one more. */
static uint32_t next_to_admit(const struct planning *p)
{
    const struct scheduler *s = p->s;
    if (s->closed)
        return s->backlog.returned.first;
    uint32_t i = backlog_first(&s->backlog, UINT32_MAX);
    if (i != REQUEST_NONE && is_long(s, &s->requests.items[i]) &&
        at_limit(p->n_long_partial, s->config.policy.max_long_partial_prefills))
        i = backlog_first(&s->backlog, s->config.policy.long_prefill_token_threshold);
    return i;
}

/* Would its first chunk leave some of the prompt to later steps? */
static bool is_partial(const struct planning *p, const struct request *r,
                       const struct admission *admission)
{
    struct request admitted = *r;
    uint32_t flags = STEP_ADMIT;
    admitted.n_planned = admission->start;
    return chunk_size(p, &admitted, &flags) < scheduler_rows_left(&admitted);
}

/* While tenants share the step, the prompts of one do not hold back those of another. */
static bool too_many_partial(const struct planning *p, const struct request *r)
{
    const struct scheduler *s = p->s;
    const uint32_t n_of_tenant =
        scheduler_tenant(s, r)->plan == s->n_plan ? scheduler_tenant(s, r)->n_partial : 0;
    return at_limit(s->share < SCHEDULER_NO_SHARE ? n_of_tenant : p->n_partial,
                    s->config.policy.max_num_partial_prefills);
}

/* Is there room for its adapter among those of the running requests, and does the worker have it?
 * The first request in order waits for room and no other overtakes it, so that none starves. */
static bool has_adapter(const struct scheduler *s, const struct request *r)
{
    const struct scheduler_config *c = &s->config;
    uint32_t used[SCHEDULER_LORAS_MAX];
    const uint32_t n = scheduler_adapters(s, used);
    bool fits = n < c->max_loras || c->max_loras == 0;
    for (uint32_t i = 0; i < n; i++)
        fits = fits || used[i] == r->adapter;
    return fits && (!c->adapter_ready || c->adapter_ready(c->adapter_ctx, r->adapter));
}

static bool may_admit(struct planning *p, uint32_t i_request, struct admission *admission)
{
    struct scheduler *s = p->s;
    const struct request *r = request_at(s, i_request);
    if (is_delayed(p, r))
        return false;
    /* Preempted, and its last token is still to come: its history is not known. (With two steps in
     * flight the step that preempted it is settled first anyway; with more it would not be.) */
    if (r->n_sampling)
        return false;
    if (r->n_token > s->config.limits.known_max - p->counts.n_known ||
        n_list(r) > STEP_LISTS_MAX - p->counts.n_list || tops_left(p) < tops_least(r) ||
        (s->config.whole_prompts && r->n_token > budget_left(p)))
        return false;
    cache_find(s, i_request, admission);
    if (admission->n_in > s->swap.copies_max - s->swap.n_in)
        return false;
    if (too_many_partial(p, r) && is_partial(p, r, admission)) {
        if (s->share < SCHEDULER_NO_SHARE && r->admission_seq == 0) /* others go past it */
            scheduler_tenant(s, r)->held = p->passes = true;
        return false;
    }
    if (admission->n_taken + scheduler_headroom(s) > kv_available(&s->pool))
        return false;
    return !r->adapter || has_adapter(s, r);
}

/* To its place among the running: at the end, unless priorities say otherwise. */
static void join(struct scheduler *s, uint32_t i)
{
    uint32_t before = s->running.last;
    while (before != REQUEST_NONE && request_before(request_at(s, i), request_at(s, before)))
        before = request_at(s, before)->prev;
    request_list_insert(&s->requests, &s->running, before, i);
    s->n_constrained += request_at(s, i)->params.grammar != 0;
    request_at(s, i)->state = REQUEST_RUNNING;
}

/* Admit the one that is next and put its first chunk in. */
static void admit(struct planning *p, uint32_t i, const struct admission *admission)
{
    struct scheduler *s = p->s;
    struct request *r = request_at(s, i);
    backlog_take(&s->backlog, i, r->n_token - admission->start); /* cached rows are not charged */
    join(s, i);
    r->slot = s->free_slots[--s->n_free_slot];
    kv_open(&s->pool, &r->table, r->slot);
    cache_admit(s, i, admission);
    if (!r->started) {
        r->started = true;
        r->queue_us = p->now_us > r->submit_us ? (uint64_t)(p->now_us - r->submit_us) : 0;
    }
    uint32_t flags = STEP_ADMIT;
    uint32_t n = chunk_size(p, r, &flags);
    put_seq(p, i, n, flags, r->table.n_block);
    count_partial(p, r);
    p->counts.n_admit++;
    p->counts.n_known += r->n_token;
    p->counts.n_stop_id += r->params.n_stop_id + (r->params.ignore_eos ? 0 : s->config.n_eos);
    p->counts.n_bias += r->params.n_bias;
    p->counts.n_list += n_list(r);
}

static void plan_admit(struct planning *p)
{
    struct scheduler *s = p->s;
    struct admission admission;
    if (s->suspecting) {
        uint32_t i = s->running.n ? REQUEST_NONE : scheduler_next_suspect(s);
        if (i != REQUEST_NONE && may_admit(p, i, &admission))
            admit(p, i, &admission);
    }
    if (s->suspecting)
        return;
    while (!p->short_of_blocks && s->n_free_slot && budget_left(p) && logits_left(p)) {
        uint32_t i = next_to_admit(p);
        p->passes = false;
        if (i == REQUEST_NONE)
            return;
        if (may_admit(p, i, &admission))
            admit(p, i, &admission);
        else if (!p->passes)
            return;
    }
}

/* Tokens that may be drafted behind a sequence's newest one, for which there is room and use. */
static uint32_t draft_tokens_for(const struct planning *p, const struct scheduled_seq *q)
{
    const struct scheduler *s = p->s;
    const struct request *r = &s->requests.items[q->i_request];
    uint32_t n = scheduler_draft_tokens(s, r), spare = scheduler_headroom(s);
    if (q->flags != STEP_SAMPLE || q->n_token != 1 || r->n_planned <= r->n_prompt)
        return 0;
    spare = kv_available(&s->pool) > spare ? kv_available(&s->pool) - spare : 0;
    uint64_t room = ((uint64_t)r->table.n_block + spare) * KV_BLOCK_TOKENS - r->n_planned;
    uint64_t tops = tops_left(p) / (n_alternative(r->params.n_logprob) + 1);
    const uint32_t limits[] = {budget_left(p),
                               logits_left(p),
                               scheduler_share_left(s, r),
                               r->n_max - r->n_token - 1,
                               room < UINT32_MAX ? (uint32_t)room : UINT32_MAX,
                               tops < UINT32_MAX ? (uint32_t)tops : UINT32_MAX};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        n = limits[i] < n ? limits[i] : n;
    return n;
}

static void plan_draft_tokens(struct planning *p)
{
    struct scheduler *s = p->s;
    for (uint32_t i = 0; i < p->f->n_seq && !p->short_of_blocks; i++) {
        struct scheduled_seq *q = &p->f->seqs[i];
        struct request *r = request_at(s, q->i_request);
        uint32_t n = draft_tokens_for(p, q);
        if (n == 0)
            continue;
        uint32_t n_new_block = kv_need(&r->table, r->n_planned + n);
        enum q_code rc = kv_grow(&s->pool, &r->table, r->n_planned + n, NULL);
        Q_ASSERT(rc == Q_OK);
        q->flags |= STEP_SPECULATE;
        q->n_token += n;
        q->n_new_block += n_new_block;
        r->n_planned += n;
        scheduler_take_share(s, r, n);
        p->counts.n_token += n;
        p->counts.n_logit += n;
        p->n_top += (uint64_t)n * n_alternative(r->params.n_logprob);
        p->counts.n_block += n_new_block;
    }
}

struct cursor { /* where the next item of each array goes */
    struct step_admit *admit;
    uint32_t *block, *known, *stop_id, *bias_id;
    float *bias;
    uint32_t *list;
    struct step_snapshot *snapshot;
};

static void *append(void *to, const void *from, size_t n, size_t size)
{
    if (n)
        memcpy(to, from, n * size);
    return (char *)to + n * size;
}

/* start: of its first row in the step. */
static void write_admit(const struct scheduler *s, const struct request *r, uint32_t start,
                        struct cursor *c)
{
    uint32_t i_item = step_items_from(r->items, r->n_item, start);
    uint32_t n_eos = r->params.ignore_eos ? 0 : s->config.n_eos;
    *c->admit = (struct step_admit){
        .n_known = r->n_token,
        .n_prompt = r->n_prompt,
        .n_stop_id = r->params.n_stop_id + n_eos,
        .n_bias = r->params.n_bias,
        .n_allowed = r->params.n_allowed,
        .n_bad = r->params.n_bad,
        .n_grammar = n_grammar(r),
        .n_thinking = r->params.n_thinking,
        .n_cached = r->n_shared * KV_BLOCK_TOKENS,
        .n_restored = r->n_restored,
        .n_item = r->n_item - i_item,
        .adapter = r->adapter,
        .state = r->state_row,
        .state_from = r->state_from,
        .item_offset = r->n_item ? r->item_offset + i_item * sizeof *r->items : 0,
        .params = r->params,
    };
    struct sample_params *p = &c->admit++->params; /* addresses mean nothing in another process */
    p->stop_ids = p->bias_ids = p->allowed_ids = p->bad_words = p->thinking = NULL;
    p->bias = NULL;
    p->grammar_data = NULL;
    c->known = append(c->known, r->tokens, r->n_token, sizeof *r->tokens);
    c->stop_id = append(c->stop_id, r->params.stop_ids, r->params.n_stop_id, sizeof *c->stop_id);
    c->stop_id = append(c->stop_id, s->config.eos_ids, n_eos, sizeof *c->stop_id);
    c->bias_id = append(c->bias_id, r->params.bias_ids, r->params.n_bias, sizeof *c->bias_id);
    c->bias = append(c->bias, r->params.bias, r->params.n_bias, sizeof *c->bias);
    c->list = append(c->list, r->params.allowed_ids, r->params.n_allowed, sizeof *c->list);
    c->list = append(c->list, r->params.bad_words, r->params.n_bad, sizeof *c->list);
    c->list = append(c->list, r->params.grammar_data, n_grammar(r), sizeof *c->list);
    c->list = append(c->list, r->params.thinking, r->params.n_thinking, sizeof *c->list);
}

static void write_step(const struct planning *p, const struct step_view *v)
{
    struct cursor c = {v->admits,   v->blocks, v->known, v->stop_ids,
                       v->bias_ids, v->bias,   v->lists, v->snapshots};
    for (uint32_t i = 0; i < p->f->n_seq; i++) {
        const struct scheduled_seq *q = &p->f->seqs[i];
        const struct request *r = request_at(p->s, q->i_request);
        v->seqs[i] = (struct step_seq){
            .slot = q->slot,
            .flags = q->flags,
            .start = q->start,
            .n_token = q->n_token,
            .n_new_block = q->n_new_block,
        };
        const kv_block *fresh = r->table.blocks + (r->table.n_block - q->n_new_block);
        c.block = append(c.block, fresh, q->n_new_block, sizeof *fresh);
        if (q->flags & STEP_ADMIT)
            write_admit(p->s, r, q->start, &c);
        for (uint32_t k = 0; k < q->n_snapshot; k++) {
            *c.snapshot = q->snapshots[k];
            c.snapshot++->seq = i;
        }
    }
    append(v->outs, p->s->swap.outs, p->counts.n_out, sizeof *v->outs);
    append(v->ins, p->s->swap.ins, p->counts.n_in, sizeof *v->ins);
    swap_sent(&p->s->swap);
}

/* Bounds 1 2 4 … 16384, +Inf. */
static uint32_t bucket(uint32_t n_token)
{
    uint32_t i = 0;
    while (i < 15 && n_token > 1u << i)
        i++;
    return i;
}

/* Where a sequence that may draft will stand is not known before its result is there. */
static uint32_t in_flight_max(const struct scheduler *s)
{
    return s->config.n_draft_token || (s->config.n_forced && s->n_constrained)
               ? 1
               : SCHEDULER_IN_FLIGHT_MAX;
}

enum q_code scheduler_plan(struct scheduler *s, void *memory, size_t n, int64_t now_us,
                           bool *planned, struct q_err *e)
{
    *planned = false;
    if (s->n_inflight >= in_flight_max(s))
        return Q_OK;
    struct inflight_step *f =
        &s->inflight_steps[(s->i_inflight + s->n_inflight) % SCHEDULER_IN_FLIGHT_MAX];
    struct planning p = {.s = s, .f = f, .now_us = now_us};
    struct step_view v;
    f->n_seq = 0;
    scheduler_end_trial(s);
    f->has_prompt = false;
    f->planned_us = now_us;
    scheduler_share(s, now_us);
    plan_decode(&p);
    plan_prefill(&p);
    plan_admit(&p);
    s->n_left = s->backlog.n;
    if (s->config.n_draft_token || (s->config.n_forced && s->n_inflight == 0))
        plan_draft_tokens(&p);
    if (f->n_seq == 0)
        return Q_OK;
    if (s->config.decided)
        s->config.decided(s->config.decided_ctx);
    p.counts.step = f->step = ++s->stats.step;
    p.counts.n_seq = f->n_seq;
    p.counts.n_out = s->swap.n_out;
    p.counts.n_in = s->swap.n_in;
    f->n_token = p.counts.n_token;
    f->n_copy = s->swap.n_out + s->swap.n_in;
    s->n_inflight++;
    s->stats.iteration_tokens[bucket(p.counts.n_token)]++;
    enum q_code rc = step_layout(&v, memory, n, &p.counts, e);
    if (rc) { /* memory smaller than step_bytes_max: nothing was computed, nothing is in flight */
        scheduler_worker_lost(s);
        return rc;
    }
    write_step(&p, &v);
    *planned = true;
    return Q_OK;
}
