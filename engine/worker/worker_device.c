/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on a device, launched one step ahead of the host. The worker launches a step as soon as it
 * arrives, then waits for the previous step and writes its result. So the device starts the next
 * step without waiting for the host, provided that the step arrives in time:
 *
 *     device   | step 1           | step 2           | step 3
 *     worker     launch 2 … wait 1, result 1, launch 3 … wait 2, result 2, launch 4
 *     engine                            settle 1, plan 3 …             settle 2, plan 4
 *
 * A row's token is copied from the device's result into the device's history; the slot reserves its
 * position (slots_reserve). Where the host needs tokens that are still on the device, it waits as
 * late as possible:
 *
 *     rows depend on tokens               draft tokens follow the newest token: the previous
 *                                         step completes first.
 *     masks depend on tokens              grammars, thinking budgets, bad words, repeated
 *                                         n-grams: the forward pass
 *                                         is launched at once; meanwhile the previous step
 *                                         completes and the masks are computed; then the sampling
 *                                         is launched.
 *     the host samples                    more alternatives than the device supports: the step
 *                                         completes before the next one.
 *
 * The overlap of steps depends on their arrival times, but no token does: a step has the same
 * inputs on the device in every case. A block or slot that is reused while a step still reads it is
 * written only by a later step, which the device starts after that step; copies to and from host
 * memory are ordered after it too (gpu_copies). */
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/worker/worker_internal.h"

FALLIBLE worker_device_make(struct worker *w, struct q_err *e)
{
    const uint32_t n = w->limits.logit_rows_max;
    bool made = true;
    w->host_rows = q_calloc(n, sizeof *w->host_rows);
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        struct inflight_step *f = &w->inflight_steps[i];
        f->rows = q_calloc(n, sizeof *f->rows);
        f->notes = q_calloc(w->limits.max_num_seqs, sizeof *f->notes);
        made = made && f->rows && f->notes;
    }
    return made && w->host_rows ? Q_OK
                                : q_fail(e, Q_NO_MEMORY, "worker: out of memory for %u rows", n);
}

void worker_device_release(struct worker *w)
{
    q_free(w->host_rows);
    for (uint32_t i = 0; i < GPU_STEPS; i++) {
        q_free(w->inflight_steps[i].rows);
        q_free(w->inflight_steps[i].notes);
    }
}

static struct inflight_step *open_step(struct worker *w)
{
    for (uint32_t i = 0; i < GPU_STEPS; i++)
        if (w->inflight_steps[i].is_open)
            return &w->inflight_steps[i];
    return NULL;
}

/* ---- dependencies on tokens of the step in flight ---- */

/* True if the batch's rows depend on those tokens. */
static bool has_draft_tokens(const struct worker *w, const struct step_view *v)
{
    bool any = w->draft != NULL;
    for (uint32_t i = 0; i < v->head->n_seq && !any; i++)
        any = v->seqs[i].flags & STEP_SPECULATE;
    return any;
}

static bool is_blind(const struct sample_params *p)
{
    return !p->grammar && !p->n_thinking && !p->n_bad && !p->no_repeat_ngram;
}

/* True if masks depend on those tokens. A new grammar is prepared meanwhile, which may take
 * long. */
static bool looks_back(const struct slots *s)
{
    bool any = s->n_fresh > 0;
    for (uint32_t i = 0; i < s->batch.n_logit && !any; i++)
        any = !s->rows[i].is_prompt && !is_blind(&s->rows[i].slot->params);
    return any;
}

/* The device samples every row of the batch, or all are pooled. */
static bool samples_all(const struct worker *w)
{
    if (w->pool_scratch) /* vectors depend on no tokens */
        return true;
    for (uint32_t i = 0; i < w->slots.batch.n_logit; i++)
        if (!gpu_samples(w->gpu, &w->slots.rows[i]))
            return false;
    return true;
}

/* ---- completing a step ---- */

/* Every thread: rows that the host samples, as they come. */
static void finish_host_rows(void *arg, uint32_t ith, uint32_t nth)
{
    struct worker *w = arg;
    const uint32_t left = w->n_host_row - w->first_host_row,
                   n = left < GPU_LOGITS ? left : GPU_LOGITS;
    (void)nth;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&w->next_row, 1, memory_order_relaxed)) < n;)
        worker_finish_row(w, w->host_rows[w->first_host_row + i],
                          w->host_row_logits + (size_t)i * w->vocab_size, &w->samplers[ith]);
}

static FALLIBLE sample_host_rows(struct worker *w, const struct inflight_step *f, struct q_err *e)
{
    w->n_host_row = 0;
    for (uint32_t i = 0; i < f->n_row; i++)
        if (f->rows[i].on_host)
            w->host_rows[w->n_host_row++] = i;
    for (w->first_host_row = 0; w->first_host_row < w->n_host_row;
         w->first_host_row += GPU_LOGITS) {
        const uint32_t left = w->n_host_row - w->first_host_row;
        enum q_code rc = gpu_logits(w->gpu, w->host_rows + w->first_host_row,
                                    left < GPU_LOGITS ? left : GPU_LOGITS, &w->host_row_logits, e);
        if (rc)
            return rc;
        atomic_store_explicit(&w->next_row, 0, memory_order_relaxed);
        team_run(w->team, finish_host_rows, w);
    }
    return Q_OK;
}

/* A row that the device sampled, to the result. */
static void complete_row(struct worker *w, const struct inflight_step *f, uint32_t i)
{
    const struct inflight_row *from = &f->rows[i];
    struct step_row *row = &w->result.rows[i];
    const struct sample_result out = {
        .row = row,
        .top_ids = w->result.top_ids + from->row.top_start,
        .top_logprobs = w->result.top_logprobs + from->row.top_start,
    };
    *row = (struct step_row){
        .slot = from->row.i_slot,
        .position = from->row.position,
        .top_start = from->row.top_start,
        .is_prompt = from->row.is_prompt,
        .is_forced = from->is_forced,
    };
    gpu_row(w->gpu, f->i, i, from->n_top, &out);
    if (from->row.is_prompt)
        row->token = from->token;
    if (row->token != SAMPLE_BAD)
        return;
    row->rank = row->rank == SAMPLE_EMPTY && from->has_mask ? SAMPLE_EMPTY : SAMPLE_BAD;
    row->token = 0; /* the history needs one until the engine ends the request */
}

/* The tokens of the result, into the slots. */
static void take_tokens(struct worker *w, const struct inflight_step *f)
{
    for (uint32_t i = 0; i < f->n_row; i++) {
        const struct inflight_row *from = &f->rows[i];
        struct step_row *row = &w->result.rows[i];
        if (from->row.is_prompt)
            continue;
        if (f->is_ahead)
            slots_fill(&w->slots, &from->row, from->n_admitted, row->token);
        else
            row->is_rejected = !slots_take(&w->slots, i, worker_sampled(row));
    }
}

static FALLIBLE complete_step(struct worker *w, struct inflight_step *f, struct q_err *e)
{
    enum q_code rc;
    if ((rc = gpu_wait(w->gpu, f->i, e)) ||
        (rc = step_result_layout(&w->result, f->result, w->result_bytes, f->n_row, f->n_top, e)) ||
        (rc = worker_put_notes(w, f->notes, f->n_note, e)))
        return rc;
    const int64_t done_us = clock_us();
    if (w->pool_scratch)
        worker_complete_vectors(w, f);
    for (uint32_t i = 0; i < f->n_row && !w->pool_scratch; i++)
        if (!f->rows[i].on_host)
            complete_row(w, f, i);
    rc = sample_host_rows(w, f, e);
    if (!f->is_ahead)
        masks_end(w->masks); /* all have been waited for; histories change now */
    if (rc)
        return rc;
    take_tokens(w, f);
    const int64_t begun_us = w->completed_us > f->start_us ? w->completed_us : f->start_us;
    const struct gpu_times times = gpu_times_of(w->gpu, f->i);
    const int64_t forward_us = done_us - begun_us - times.copy_us;
    struct step_result_head *head = w->result.head;
    head->step = f->number;
    head->start_us = f->start_us;
    head->copy_us = times.copy_us;
    head->forward_us = forward_us > 0 ? (uint32_t)forward_us : 0;
    head->total_us = (uint32_t)(clock_us() - f->start_us);
    head->gap_us = w->draft ? STEP_NO_GAP : times.gap_us; /* its passes are between steps */
    head->error = Q_OK;
    w->completed_us = done_us;
    return Q_OK;
}

static FALLIBLE complete_and_answer(struct worker *w, struct inflight_step *f, struct q_err *e)
{
    enum q_code rc = complete_step(w, f, e);
    f->is_open = false;
    if (rc) {
        log_error("%s", e->message);
        worker_answer_error(w, f->result, f->number, rc);
    } else {
        ring_step_done(w->ring);
    }
    return rc;
}

FALLIBLE worker_complete_step(struct worker *w, struct q_err *e)
{
    struct inflight_step *f = open_step(w);
    return f ? complete_and_answer(w, f, e) : Q_OK;
}

static bool is_done(void *ctx)
{
    struct worker *w = ctx;
    return gpu_done(w->gpu, open_step(w)->i);
}

bool worker_complete_now(struct worker *w)
{
    return open_step(w) && !ring_step_before(w->ring, is_done, w);
}

/* ---- taking off ---- */

static void note_row(struct worker *w, struct inflight_step *f, uint32_t i)
{
    const struct logit_row *row = &w->slots.rows[i];
    const struct sample_params *p = &row->slot->params;
    const struct sample_input in = slots_input(row, (struct row_mask){NULL, NULL});
    f->rows[i] = (struct inflight_row){
        .row = *row,
        .n_admitted = row->slot->n_admitted,
        .token = row->is_prompt ? row->slot->history[row->position] : 0,
        .n_top = row->is_prompt ? row->n_top : p->n_logprob,
        .has_mask = p->grammar || sample_has_mask(&in),
        .is_forced = row->slot->is_forced,
        .on_host = !w->pool_scratch && !gpu_samples(w->gpu, row),
        .is_raw = p->raw_vector,
    };
}

/* The step was given to the device. */
static void note(struct worker *w, struct inflight_step *f)
{
    f->n_row = w->slots.batch.n_logit;
    f->n_top = w->slots.n_top;
    f->n_note = w->n_note;
    if (w->n_note)
        memcpy(f->notes, w->notes, w->n_note * sizeof *w->notes);
    for (uint32_t i = 0; i < f->n_row; i++)
        note_row(w, f, i);
    for (uint32_t i = 0; f->is_ahead && i < f->n_row; i++)
        if (!w->slots.rows[i].is_prompt)
            slots_reserve(&w->slots, &w->slots.rows[i]);
}

/* before: the step in flight, or NULL; it completes when this one needs its tokens. */
static FALLIBLE take_off(struct worker *w, const struct step_view *v, struct inflight_step *f,
                         struct inflight_step *before, struct q_err *e)
{
    struct slots *s = &w->slots;
    const bool draft_tokens = has_draft_tokens(w, v);
    enum q_code rc;
    if (draft_tokens && before && (rc = complete_and_answer(w, before, e)))
        return rc;
    if (v->head->n_out || v->head->n_in)
        gpu_copies(w->gpu, v);
    if ((rc = worker_propose(w, v, e)) || (rc = worker_batch(w, v, e)) ||
        (rc = gpu_launch(w->gpu, s, v, e)))
        return rc;
    for (uint32_t i = 0; gpu_refusal(w->gpu) && i < v->head->n_seq; i++)
        worker_note(w, &v->seqs[i], gpu_refusal(w->gpu));
    f->is_ahead = !draft_tokens && samples_all(w);
    if (before && before->is_open && (!f->is_ahead || looks_back(s)) &&
        (rc = complete_and_answer(w, before, e)))
        return rc;
    masks_begin(w->masks);
    f->i = gpu_launch_sampling(w->gpu, s, w->masks);
    note(w, f);
    if (f->is_ahead)
        masks_end(w->masks);
    return Q_OK;
}

FALLIBLE worker_device_step(struct worker *w, const struct step_view *v, void *result,
                            struct q_err *e)
{
    struct inflight_step *before = open_step(w);
    struct inflight_step *f = &w->inflight_steps[before == &w->inflight_steps[0]];
    enum q_code rc;
    f->number = v->head->step;
    f->result = result;
    f->start_us = clock_us();
    if ((rc = slots_apply(&w->slots, v, e)) || (rc = take_off(w, v, f, before, e)) ||
        (before && before->is_open && (rc = complete_and_answer(w, before, e))))
        return rc;
    if (f->is_ahead) {
        f->is_open = true;
        return Q_OK;
    }
    rc = complete_step(w, f, e);
    masks_end(w->masks); /* also after an error */
    if (rc)
        return rc;
    if (w->draft)
        draft_settle(&w->slots, v);
    ring_step_done(w->ring);
    return Q_OK;
}
