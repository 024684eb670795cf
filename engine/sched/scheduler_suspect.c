/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the request that kills the worker.
 *
 * A worker computes steps in order. If a request killed it (and not the machine), that request is
 * in the oldest step without a result, and every request of that step counts the death. After one
 * death all requests continue as before. A request with two deaths is a suspect; suspects run
 * alone, oldest first, while all other requests wait and keep their tokens:
 *
 *     waiting ── admitted alone ──▶ on trial ── SUSPECT_TRIAL_TOKENS ──▶ waiting, no suspect
 *                                      └── the worker dies (CULPRIT_LOST) ──▶ ends with an error
 *
 * A trial lasts several tokens, because the crash may occur in the decode step after the prefill;
 * after a trial of one token, a culprit would gain one token per death without end. Tokens settled
 * outside of trials count too, so a request that makes progress is not suspected for an old death.
 *
 * Rejected: bisection of the suspects. It needs log2(n) more deaths where trials need one, and a
 * death costs a load of the weights, a trial one prefill.
 *
 * The search ends: each trial removes the culprit or leaves one suspect fewer. When all suspects
 * passed (they crash the worker only together, or the machine was the cause), they run together
 * again and keep the tokens settled meanwhile. The core bounds the number of deaths without a
 * finished step (engine/core). */
#include "engine/sched/scheduler_internal.h"

#define SUSPECT_LOST 2u
#define CULPRIT_LOST 3u

static bool is_suspect(const struct request *r)
{
    return r->n_lost >= SUSPECT_LOST;
}

/* Count the death for everyone in the step. The culprit, or REQUEST_NONE. */
static uint32_t blame(struct scheduler *s, const struct inflight_step *f)
{
    uint32_t culprit = REQUEST_NONE;
    for (uint32_t j = 0; j < f->n_seq; j++) {
        const struct scheduled_seq *q = &f->seqs[j];
        struct request *r = request_at(s, q->i_request);
        if (r->state == REQUEST_FREE || r->use != q->use)
            continue;
        r->n_lost++;
        r->n_since_lost = 0;
        s->suspecting = s->suspecting || is_suspect(r);
        if (f->n_seq == 1 && r->n_lost >= CULPRIT_LOST)
            culprit = q->i_request;
    }
    return culprit;
}

bool scheduler_worker_died(struct scheduler *s, struct scheduler_output *culprit)
{
    uint32_t i = s->n_inflight ? blame(s, &s->inflight_steps[s->i_inflight]) : REQUEST_NONE;
    if (i != REQUEST_NONE) {
        const struct request *r = request_at(s, i);
        *culprit = (struct scheduler_output){
            .frontend_id = r->frontend_id,
            .req_id = r->req_id,
            .seq = r->n_token - r->n_prompt,
            .finish = FINISH_ERROR,
            .queue_us = r->queue_us,
        };
        scheduler_forget(s, i);
        s->stats.n_finished++;
    }
    scheduler_worker_lost(s);
    return i != REQUEST_NONE;
}

void scheduler_end_trial(struct scheduler *s)
{
    uint32_t i = s->running.first;
    if (!s->suspecting || i == REQUEST_NONE || is_suspect(request_at(s, i)))
        return;
    scheduler_release_slot(s, i);
    backlog_return(&s->backlog, i);
}

uint32_t scheduler_next_suspect(struct scheduler *s)
{
    uint32_t i = s->backlog.returned.first; /* they all have run */
    while (i != REQUEST_NONE && !is_suspect(request_at(s, i)))
        i = request_at(s, i)->next;
    s->suspecting = i != REQUEST_NONE;
    return i;
}
