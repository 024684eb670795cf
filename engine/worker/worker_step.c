/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "engine/worker/worker_internal.h"

/* Sample one row of logits, or compute its logprobs, into its row of the result. */
void worker_finish_row(struct worker *w, uint32_t i, float *logits, struct sample_scratch *s)
{
    const struct logit_row *from = &w->slots.rows[i];
    struct step_row *row = &w->result.rows[i];
    const struct sample_result out = {
        .row = row,
        .top_ids = w->result.top_ids + from->top_start,
        .top_logprobs = w->result.top_logprobs + from->top_start,
    };
    row->slot = from->i_slot;
    row->position = from->position;
    row->top_start = from->top_start;
    row->is_prompt = from->is_prompt;
    row->is_rejected = 0;
    row->is_forced = from->slot->is_forced;
    if (from->is_prompt) {
        row->token = from->slot->history[from->position];
        sample_known(logits, from->n_top, s, &out);
        return;
    }
    const struct sample_input in = slots_input(
        from, slots_masks(from->slot) ? masks_wait(w->masks, i) : (struct row_mask){NULL, NULL});
    sample_token(logits, &in, s, &out);
    if (row->token == SAMPLE_BAD) /* the history needs one until the engine ends the request */
        row->token = 0;
}

/* Rows first … first + n - 1 of the step, whose logits are there, as threads come for them. */
static void finish_rows(struct worker *w, uint32_t first, uint32_t n, uint32_t ith)
{
    for (uint32_t i; (i = atomic_fetch_add_explicit(&w->next_row, 1, memory_order_relaxed)) < n;) {
        float *row = w->logits + (size_t)i * w->n_output;
        if (w->pool_scratch)
            worker_finish_vector(w, first + i,
                                 &(struct worker_vector){
                                     .row = &w->slots.rows[first + i],
                                     .is_raw = w->slots.rows[first + i].slot->params.raw_vector,
                                     .pooled = row,
                                 },
                                 ith);
        else
            worker_finish_row(w, first + i, row, &w->samplers[ith]);
    }
}

/* Every thread of the team: the forward pass together, then some rows of logits at a time: together
 * computed, one by one sampled. */
static void compute(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    const struct batch *b = &w->slots.batch;
    struct team *team = nth > 1 ? w->team : NULL;
    struct model_logits l = {.rows = w->logits};
    model_forward(w->model, b, &w->kv, w->scratch, NULL, team, ith, nth);
    for (; l.first < b->n_logit; l.first += l.n) {
        const uint32_t left = b->n_logit - l.first;
        l.n = left < w->logits_max ? left : w->logits_max;
        if (l.first && ith == 0) { /* all threads have left the rows before */
            atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
            w->sampled_us += clock_us() - w->forward_end_us;
        }
        model_logits(w->model, b, w->scratch, &l, team, ith, nth);
        if (ith == 0)
            w->forward_end_us = clock_us();
        finish_rows(w, l.first, l.n, ith);
        if (l.n < left)
            team_barrier(team);
    }
    if (b->n_logit == 0 && ith == 0)
        w->forward_end_us = clock_us();
}

/* Draft tokens that were copied from the history end before a placeholder. */
static uint32_t n_before_item(const struct slots *s, const struct slot *slot, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && slot->history[slot->n_known + i] < s->vocab_size)
        i++;
    return i;
}

FALLIBLE worker_propose(struct worker *w, const struct step_view *v, struct q_err *e)
{
    const struct speculation *c = &w->config->speculation;
    enum q_code rc;
    masks_propose(w->masks, &w->slots, v);
    if (w->draft && (rc = draft_propose(w->draft, &w->slots, v, e))) /* its passes decide */
        return rc;
    for (uint32_t i = 0; i < v->head->n_seq && c->method == SPECULATE_NGRAM; i++) {
        const struct step_seq *q = &v->seqs[i];
        struct slot *slot = &w->slots.slots[q->slot];
        if (q->flags & STEP_SPECULATE && !slot->is_forced)
            slot->n_draft_token =
                n_before_item(&w->slots, slot,
                              speculate_ngram(slot->history + slot->n_known, q->n_token - 1,
                                              slot->history, slot->n_known, c));
    }
    return Q_OK;
}

static FALLIBLE check_copies(const struct worker *w, const struct step_copy *c, uint32_t n,
                             struct q_err *e)
{
    const uint32_t n_block = (w->gpu ? gpu_kv(w->gpu) : &w->kv)->n_block;
    const uint32_t n_host = (w->gpu ? gpu_swap(w->gpu) : &w->swap)->n_block;
    for (uint32_t i = 0; i < n; i++)
        if (c[i].block >= n_block || c[i].host >= n_host)
            return q_fail(e, Q_CORRUPT, "worker: invalid copy: block %u of %u and %u of %u",
                          c[i].block, n_block, c[i].host, n_host);
    return Q_OK;
}

/* Every thread: its share of the copies, all out before one in. */
static void copy(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    const struct step_view *v = w->step;
    for (uint32_t i = ith; i < v->head->n_out; i += nth) {
        kv_cache_copy(&w->swap, v->outs[i].host, &w->kv, v->outs[i].block);
        if (w->draft)
            draft_copy(w->draft, &v->outs[i], true);
    }
    team_barrier(nth > 1 ? w->team : NULL);
    for (uint32_t i = ith; i < v->head->n_in; i += nth) {
        kv_cache_copy(&w->kv, v->ins[i].block, &w->swap, v->ins[i].host);
        if (w->draft)
            draft_copy(w->draft, &v->ins[i], false);
    }
}

static FALLIBLE check_all_copies(const struct worker *w, const struct step_view *v, struct q_err *e)
{
    enum q_code rc = check_copies(w, v->outs, v->head->n_out, e);
    return rc ? rc : check_copies(w, v->ins, v->head->n_in, e);
}

FALLIBLE worker_batch(struct worker *w, const struct step_view *v, struct q_err *e)
{
    enum q_code rc = slots_batch(&w->slots, v, e);
    if (!rc)
        rc = adapters_batch(w->adapters, &w->slots, v, &w->slots.batch, e);
    w->n_note = !rc && w->items ? items_step(w->items, &w->slots, v, w->notes) : 0;
    return rc;
}

FALLIBLE worker_put_notes(struct worker *w, const struct step_note *notes, uint32_t n,
                          struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = step_result_note(&w->result, w->result_bytes, &notes[i], e);
    return rc;
}

static bool has_note(const struct worker *w, uint32_t slot)
{
    for (uint32_t i = 0; i < w->n_note; i++)
        if (w->notes[i].slot == slot)
            return true;
    return false;
}

void worker_note(struct worker *w, const struct step_seq *q, const char *why)
{
    if (!has_note(w, q->slot))
        step_note_set(&w->notes[w->n_note++], q->slot, q->start, why);
}

/* What a plugin says of the sequences that it could not compute. */
static void note_failures(struct worker *w, const struct step_view *v)
{
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const char *why = model_failure(w->scratch, i);
        struct q_err e = Q_ERR_INIT;
        if (!why || has_note(w, v->seqs[i].slot))
            continue;
        q_fail_text(&e, Q_INTERNAL, "plugin %s: %s", model_plugin(w->model), why);
        worker_note(w, &v->seqs[i], e.message);
        log_error("%s", e.message);
    }
}

static FALLIBLE step_compute(struct worker *w, const struct step_view *v, void *result,
                             struct q_err *e)
{
    struct slots *s = &w->slots;
    const int64_t start_us = clock_us();
    enum q_code rc;
    w->step = v;
    if (v->head->n_out || v->head->n_in)
        team_run(w->team, copy, w);
    w->step = NULL;
    const int64_t copied_us = v->head->n_out || v->head->n_in ? clock_us() : start_us;
    if ((rc = slots_apply(s, v, e)) || (rc = worker_propose(w, v, e)) ||
        (rc = worker_batch(w, v, e)) ||
        (rc = step_result_layout(&w->result, result, w->result_bytes, s->batch.n_logit, s->n_top,
                                 e)))
        return rc;
    masks_begin(w->masks);
    atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
    w->sampled_us = 0;
    team_run(w->team, compute, w);
    masks_end(w->masks);
    note_failures(w, v);
    if ((rc = worker_put_notes(w, w->notes, w->n_note, e)))
        return rc;
    for (uint32_t i = 0; i < s->batch.n_logit; i++)
        if (!s->rows[i].is_prompt)
            w->result.rows[i].is_rejected = !slots_take(s, i, worker_sampled(&w->result.rows[i]));
    if (w->draft)
        draft_settle(s, v);
    w->result.head->step = v->head->step;
    w->result.head->start_us = start_us;
    w->result.head->copy_us = (uint32_t)(copied_us - start_us);
    w->result.head->forward_us = (uint32_t)(w->forward_end_us - w->sampled_us - copied_us);
    w->result.head->gap_us = w->ended_us ? step_gap((double)(start_us - w->ended_us)) : STEP_NO_GAP;
    w->ended_us = clock_us();
    w->result.head->total_us = (uint32_t)(w->ended_us - start_us);
    w->result.head->error = Q_OK;
    ring_step_done(w->ring);
    return Q_OK;
}

void worker_answer_error(struct worker *w, void *result, uint64_t number, enum q_code rc)
{
    struct q_err ignored = Q_ERR_INIT;
    if (!step_result_layout(&w->result, result, w->result_bytes, 0, 0, &ignored)) {
        w->result.head->error = (uint32_t)rc;
        w->result.head->copy_us = w->result.head->forward_us = w->result.head->total_us = 0;
        w->result.head->start_us = clock_us();
        w->result.head->step = number;
    }
    ring_step_done(w->ring);
}

void worker_step(struct worker *w, void *step, void *result)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    uint64_t number = 0;
    enum q_code rc = step_view(&v, step, w->step_bytes, &w->limits, &e);
    if (!rc) {
        number = v.head->step;
        rc = check_all_copies(w, &v, &e);
    }
    if (!rc)
        rc = w->gpu ? worker_device_step(w, &v, result, &e) : step_compute(w, &v, result, &e);
    if (rc) {
        log_error("%s", e.message);
        struct q_err ignored = Q_ERR_INIT; /* results come in order: the one before first */
        if (w->gpu && worker_complete_step(w, &ignored))
            log_error("%s", ignored.message);
        worker_answer_error(w, result, number, rc);
    }
    Q_CHECK(slots_check(&w->slots));
}
