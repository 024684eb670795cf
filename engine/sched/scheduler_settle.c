/* SPDX-License-Identifier: Apache-2.0 */
/* The whole result is checked against the oldest step in flight before anything changes, because
 * the worker is another process whose memory may be corrupt. Then the rows of each sequence go to
 * the request that they were computed for, if it still exists. A request that was preempted after
 * the step was planned takes its tokens too. */
#include "engine/sched/scheduler_internal.h"

static enum q_code wrong_row(uint32_t i, const struct step_row *row, const char *why,
                             struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "result row %u (slot %u, position %u): %s", i, row->slot,
                  row->position, why);
}

/* One sampled row, or with STEP_SPECULATE up to n_token of them, the rejected ones last. */
static enum q_code match_sampled(struct scheduled_seq *q, uint32_t i, const struct step_row *row,
                                 struct q_err *e)
{
    bool draft_tokens = q->flags & STEP_SPECULATE;
    uint32_t first = draft_tokens ? q->start + 1 : q->start + q->n_token;
    uint32_t n_max = !(q->flags & STEP_SAMPLE) ? 0 : draft_tokens ? q->n_token : 1;
    if (q->n_sampled == 0)
        q->i_token = i + 1;
    if (q->n_sampled == n_max || row->position != first + q->n_sampled ||
        i + 1 != q->i_token + q->n_sampled)
        return wrong_row(i, row, "the step did not request this token", e);
    if (row->is_rejected ? q->n_sampled == 0 : q->n_predicted != q->n_sampled)
        return wrong_row(
            i, row,
            "the first token is marked rejected, or an accepted token follows a rejected one", e);
    q->n_sampled++;
    q->n_predicted += !row->is_rejected;
    return Q_OK;
}

static enum q_code match_row(const struct scheduler *s, struct inflight_step *f, uint32_t i,
                             const struct step_row *row, struct q_err *e)
{
    if (row->slot >= s->config.limits.max_num_seqs || !f->by_slot[row->slot])
        return wrong_row(i, row, "the slot is not in the step", e);
    struct scheduled_seq *q = &f->seqs[f->by_slot[row->slot] - 1];
    if (row->token >= s->config.vocab_size && !row->is_prompt) /* or a placeholder of an item */
        return wrong_row(i, row, "the token is not in the vocabulary", e);
    if (row->is_prompt) {
        if (q->n_prompt_seen == 0)
            q->i_prompt = i + 1;
        if (q->n_prompt_seen == q->n_prompt_row || i + 1 != q->i_prompt + q->n_prompt_seen ||
            row->position != q->start + 1 + q->n_prompt_seen)
            return wrong_row(i, row, "not the next prompt position", e);
        q->n_prompt_seen++;
        return Q_OK;
    }
    return match_sampled(q, i, row, e);
}

static enum q_code match_notes(const struct scheduler *s, struct inflight_step *f,
                               const struct step_result *r, struct q_err *e)
{
    for (uint32_t j = 0; j < f->n_seq; j++)
        f->seqs[j].note = NULL;
    for (uint32_t i = 0; i < r->head->n_note; i++) {
        const uint32_t slot = r->notes[i].slot;
        if (slot >= s->config.limits.max_num_seqs || !f->by_slot[slot])
            return q_fail(e, Q_CORRUPT, "result note %u: slot %u is not in the step", i, slot);
        f->seqs[f->by_slot[slot] - 1].note = &r->notes[i];
    }
    return Q_OK;
}

static enum q_code match_result(const struct scheduler *s, struct inflight_step *f,
                                const struct step_result *r, struct q_err *e)
{
    enum q_code rc = match_notes(s, f, r, e);
    for (uint32_t j = 0; j < f->n_seq; j++)
        f->seqs[j].i_token = f->seqs[j].i_prompt = f->seqs[j].n_prompt_seen = f->seqs[j].n_sampled =
            f->seqs[j].n_predicted = 0;
    for (uint32_t i = 0; i < r->head->n_row && !rc; i++)
        rc = match_row(s, f, i, &r->rows[i], e);
    for (uint32_t j = 0; j < f->n_seq && !rc; j++) {
        const struct scheduled_seq *q = &f->seqs[j];
        if (q->n_prompt_seen != q->n_prompt_row || !(q->flags & STEP_SAMPLE) != !q->i_token)
            rc = q_fail(e, Q_CORRUPT, "result of step %llu: rows of slot %u are missing",
                        (unsigned long long)f->step, q->slot);
    }
    return rc;
}

static bool is_in(uint32_t id, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Does the newest token end the request? The worker keeps eos and stop ids away from the first
 * min_tokens; should one come all the same, it is text. An eos that is also a stop id counts as
 * eos, as in vLLM. */
static enum finish_reason finish_of(const struct scheduler *s, const struct request *r,
                                    uint32_t *stop_id)
{
    uint32_t i_output = r->n_token - 1 - r->n_prompt, token = r->tokens[r->n_token - 1];
    *stop_id = 0;
    if (i_output >= r->params.min_tokens) {
        if (!r->params.ignore_eos && is_in(token, s->config.eos_ids, s->config.n_eos))
            return FINISH_STOP;
        if (is_in(token, r->params.stop_ids, r->params.n_stop_id)) {
            *stop_id = token + 1;
            return FINISH_STOP;
        }
    }
    return r->n_token == r->n_max ? FINISH_LENGTH : FINISH_NONE;
}

/* Prompt tokens enter the statistics when first computed; computing them again after a preemption
 * is no new prompt. */
static void count_prompt(struct scheduler *s, struct request *r, const struct scheduled_seq *q)
{
    uint32_t end = q->start + q->n_token;
    if (end > r->n_prompt)
        end = r->n_prompt;
    if (end <= r->n_counted)
        return;
    s->stats.prompt_tokens += end - r->n_counted;
    r->n_counted = end;
}

/* The first row is behind no draft token; the others tell whose draft tokens they were. */
static void count_draft_tokens(struct scheduler *s, const struct scheduled_seq *q,
                               const struct step_result *result)
{
    if (q->n_sampled < 2)
        return;
    if (result->rows[q->i_token].is_forced) {
        s->stats.n_forced_token += q->n_sampled - 1;
        s->stats.n_forced_accepted += q->n_predicted - 1;
        return;
    }
    s->stats.n_draft++;
    s->stats.n_draft_token += q->n_sampled - 1;
    s->stats.n_accepted_token += q->n_predicted - 1;
    for (uint32_t i = 0; i + 1 < q->n_predicted && i < SCHEDULER_DRAFT_TOKENS_MAX; i++)
        s->stats.accepted_at[i]++;
}

/* The next token of a request; its output is filled but for prompt rows. */
static void settle_token(struct scheduler *s, uint32_t i_request, const struct step_row *row,
                         struct scheduler_output *o)
{
    struct request *r = request_at(s, i_request);
    Q_ASSERT(r->n_token < r->n_max);
    *o = (struct scheduler_output){
        .frontend_id = r->frontend_id,
        .req_id = r->req_id,
        .seq = r->n_token - r->n_prompt,
        .n_cached = r->n_cached,
        .queue_us = r->queue_us,
        .row = row,
        .has_token = !r->params.pools,
        .has_vector = r->params.pools,
        .token = row->token,
    };
    r->tokens[r->n_token++] = row->token;
    s->backlog.n_token += r->state == REQUEST_WAITING; /* preempted after this step was planned */
    scheduler_got_on(r);
    s->stats.generation_tokens += o->has_token;
    backlog_charge(&s->backlog, i_request, 1);
    o->finish = o->has_vector ? FINISH_STOP : finish_of(s, r, &o->stop_id);
}

/* Nothing uses its rows any more. */
static bool is_gone(const struct request *r, const struct scheduled_seq *q)
{
    return r->state == REQUEST_FREE || r->use != q->use || q->is_dropped;
}

/* A running request back to the queue, without what steps in flight compute for it. */
static void compute_again(struct scheduler *s, uint32_t i_request)
{
    struct request *r = request_at(s, i_request);
    for (uint32_t k = 0; k < s->n_inflight; k++) {
        struct inflight_step *f = &s->inflight_steps[(s->i_inflight + k) % SCHEDULER_IN_FLIGHT_MAX];
        for (uint32_t j = 0; j < f->n_seq; j++)
            f->seqs[j].is_dropped |= f->seqs[j].i_request == i_request && f->seqs[j].use == r->use;
    }
    r->n_sampling = 0;
    r->prompt_next = r->prompt_settled;
    scheduler_release_slot(s, i_request);
    backlog_return(&s->backlog, i_request);
}

/* Blocks are in the prefix cache from their planning on, so others may have begun to share those
 * that hold no numbers now. Such a request begins with the same item, and gets a note of its own
 * when it has computed that. */
static void unpublish(struct scheduler *s, const struct request *r, uint32_t i_block)
{
    const struct kv_table *t = &r->table;
    if (r->state != REQUEST_RUNNING || i_block >= t->n_block)
        return;
    kv_unpublish(&s->pool, t, i_block);
    for (uint32_t i = s->running.first, next; i != REQUEST_NONE; i = next) {
        const struct request *other = request_at(s, i);
        next = other->next;
        if (other != r && other->table.n_block > i_block &&
            other->table.blocks[i_block] == t->blocks[i_block])
            compute_again(s, i);
    }
}

/* The same for a request that was aborted meanwhile: which blocks it had is not known any more. */
static void unpublish_all(struct scheduler *s, uint32_t i_block)
{
    kv_forget(&s->pool);
    for (uint32_t i = s->running.first, next; i != REQUEST_NONE; i = next) {
        next = request_at(s, i)->next;
        if (request_at(s, i)->n_shared > i_block)
            compute_again(s, i);
    }
}

/* The worker could not compute it: it ends, and nothing of it is reused. */
static uint32_t settle_failed(struct scheduler *s, const struct scheduled_seq *q,
                              struct scheduler_output *o)
{
    const struct request *r = request_at(s, q->i_request);
    if (is_gone(r, q) || r->state != REQUEST_RUNNING) {
        unpublish_all(s, q->note->position / KV_BLOCK_TOKENS);
        if (is_gone(r, q))
            return 0;
    }
    *o = (struct scheduler_output){
        .frontend_id = r->frontend_id,
        .req_id = r->req_id,
        .seq = r->n_token - r->n_prompt,
        .finish = FINISH_ERROR,
        .queue_us = r->queue_us,
        .note = q->note,
    };
    unpublish(s, r, q->note->position / KV_BLOCK_TOKENS);
    scheduler_forget(s, q->i_request);
    s->stats.n_finished++;
    return 1;
}

/* After a step whose draft tokens were all accepted, the draft model has no KV of the last one's
 * row yet: it computes that row in the request's next step (engine/worker/draft.c), and never if
 * the request ends or is preempted. So the plan of that step publishes a block that the row ends.
 */
static void publish(struct scheduler *s, struct request *r, const struct scheduled_seq *q)
{
    const bool lacks_row =
        q->flags & STEP_SPECULATE && r->n_planned == (uint64_t)q->start + q->n_token;
    r->n_planned -= lacks_row;
    cache_publish(s, r);
    r->n_planned += lacks_row;
}

/* Returns how many outputs the sequence gave: one for each token, the first with the prompt
 * rows. */
static uint32_t settle_seq(struct scheduler *s, const struct scheduled_seq *q,
                           const struct step_result *result, struct scheduler_output *o)
{
    struct request *r = request_at(s, q->i_request);
    uint32_t n = 0;
    if (is_gone(r, q))
        return 0;
    count_prompt(s, r, q);
    count_draft_tokens(s, q, result);
    if (q->n_sampled) {
        Q_ASSERT(r->n_sampling > 0);
        r->n_sampling--;
    }
    while (n < q->n_predicted && (n == 0 || o[n - 1].finish == FINISH_NONE)) {
        settle_token(s, q->i_request, &result->rows[q->i_token - 1 + n], &o[n]);
        n++;
    }
    if (q->flags & STEP_SPECULATE && r->state == REQUEST_RUNNING)
        r->n_planned = r->n_token - 1; /* rows of wrong draft tokens are computed again */
    publish(s, r, q);
    if (q->n_prompt_row) {
        if (n == 0)
            o[n++] = (struct scheduler_output){
                .frontend_id = r->frontend_id,
                .req_id = r->req_id,
                .seq = r->n_token - r->n_prompt,
                .n_cached = r->n_cached,
                .queue_us = r->queue_us,
            };
        o->prompt_rows = &result->rows[q->i_prompt - 1];
        o->n_prompt_row = q->n_prompt_row;
        r->prompt_settled += q->n_prompt_row;
    }
    if (n && o[n - 1].finish) {
        scheduler_forget(s, q->i_request);
        s->stats.n_finished++;
    }
    return n;
}

enum q_code scheduler_settle(struct scheduler *s, const struct step_result *r, int64_t now_us,
                             struct scheduler_output *outputs, uint32_t *n_output, struct q_err *e)
{
    *n_output = 0;
    struct inflight_step *f = &s->inflight_steps[s->i_inflight];
    if (s->n_inflight == 0 || r->head->step != f->step)
        return q_fail(e, Q_CORRUPT, "result of step %llu: the oldest in flight is %llu",
                      (unsigned long long)r->head->step,
                      s->n_inflight ? (unsigned long long)f->step : 0ull);
    if (r->head->error)
        return q_fail(e, Q_CORRUPT, "step %llu failed in the worker: %s",
                      (unsigned long long)f->step,
                      r->head->error < Q_CODE_COUNT ? q_code_name((enum q_code)r->head->error)
                                                    : "unknown error");
    enum q_code rc = match_result(s, f, r, e);
    if (rc)
        return rc;
    for (uint32_t j = 0; j < f->n_seq; j++) /* first, since others may have read their blocks */
        if (f->seqs[j].note)
            *n_output += settle_failed(s, &f->seqs[j], &outputs[*n_output]);
    for (uint32_t j = 0; j < f->n_seq; j++) {
        f->by_slot[f->seqs[j].slot] = 0;
        *n_output += settle_seq(s, &f->seqs[j], r, &outputs[*n_output]);
    }
    /* The worker began when it was planned, or when the step before was done. */
    const int64_t took_us =
        now_us - (f->planned_us > s->settled_us ? f->planned_us : s->settled_us);
    if (f->has_prompt)
        s->last_prompt_us = took_us;
    row_cost_note(&s->row_cost, f->n_token, took_us);
    s->settled_us = now_us;
    scheduler_measure(s, f, r->head);
    s->i_inflight = (s->i_inflight + 1) % SCHEDULER_IN_FLIGHT_MAX;
    s->n_inflight--;
    return Q_OK;
}
