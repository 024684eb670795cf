/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/replay/replay.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/fingerprint.h"

#define END_MS 2000 /* for the worker to exit */

static uint32_t blocks_of(uint32_t n_token)
{
    return (n_token + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
}

/* ---- the worker ---- */

FALLIBLE replay_wait(struct replay *r, struct q_err *e)
{
    struct pollfd p[] = {
        {.fd = ring_event_fd(r->ring), .events = POLLIN},
        {.fd = r->worker.pid_fd, .events = POLLIN},
    };
    while (poll(p, 2, -1) < 0)
        if (errno != EINTR)
            return q_fail(e, Q_IO, "poll: %s", strerror(errno));
    if (p[0].revents)
        ring_event_clear(r->ring);
    else if (worker_process_ended(&r->worker, e))
        return Q_UNAVAILABLE;
    return Q_OK;
}

static FALLIBLE wait_ready(struct replay *r, struct q_err *e)
{
    enum worker_state state;
    uint32_t percent;
    while ((state = ring_state(r->ring, &percent, e)) == WORKER_LOADING) {
        const enum q_code rc = replay_wait(r, e);
        if (rc && ring_state(r->ring, &percent, e) != WORKER_FAILED)
            return rc;
    }
    return state == WORKER_FAILED ? e->code : ring_attach(r->ring, &r->info, e);
}

/* Limits and vocabulary of the model have to be those of the record. */
static FALLIBLE check_fit(const struct replay *r, struct q_err *e)
{
    const struct record_head *h = &r->file.head;
    const struct worker_info *i = &r->info;
    if (i->shape.vocab_size != h->vocab_size)
        return q_fail(e, Q_MISMATCH,
                      "the model has a vocabulary of %u tokens, that of the record "
                      "%u: give the recorded model as MODEL",
                      i->shape.vocab_size, h->vocab_size);
    if (memcmp(&i->limits, &h->limits, sizeof i->limits) != 0)
        return q_fail(e, Q_MISMATCH,
                      "the steps of this model are of another size (%u sequences, %u rows, %u "
                      "tokens; recorded: %u, %u, %u): give the recorded model and no options that "
                      "change them",
                      i->limits.max_num_seqs, i->limits.max_num_batched_tokens,
                      i->limits.max_model_len, h->limits.max_num_seqs,
                      h->limits.max_num_batched_tokens, h->limits.max_model_len);
    return Q_OK;
}

FALLIBLE replay_open(struct replay *r, struct q_err *e)
{
    const struct record_head *h = &r->file.head;
    struct worker_config *w = &r->config.worker;
    enum q_code rc;
    const bool has_more = h->n_swap_block || h->limits.n_state;
    r->n_scratch = h->continues && has_more ? blocks_of(h->limits.max_model_len) : 0;
    w->n_block = h->n_block + r->n_scratch;
    w->n_swap_block = h->n_swap_block;
    w->n_state = h->limits.n_state;
    w->item_mib = h->limits.item_mib;
    w->is_again = true;
    w->max_model_len = h->max_model_len;
    w->fit_length = false;
    if ((w->item_mib && (rc = item_store_init(&r->items.store, step_store_bytes(&h->limits), e))) ||
        (rc = ring_new(&r->ring, w, e)) || (rc = ring_share_items(r->ring, r->items.store.fd, e)) ||
        (rc = worker_process_start(&r->worker, r->ring, r->config.worker_program, e)) ||
        (rc = wait_ready(r, e)) || (rc = check_fit(r, e)) ||
        (rc = fingerprint_make(r->fingerprint, w, &r->info, NULL, e)) ||
        (rc = replay_fill_init(r, e)) || (rc = replay_items_init(r, e)))
        return rc;
    r->rows = q_calloc(h->limits.logit_rows_max + 1, sizeof *r->rows);
    return r->rows ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a result");
}

void replay_release(struct replay *r)
{
    if (r->ring)
        worker_process_end(&r->worker, END_MS);
    ring_free(r->ring);
    replay_fill_release(r);
    replay_items_release(r);
    q_free(r->adapters);
    q_free(r->rows);
    *r = (struct replay)REPLAY_INIT;
}

FALLIBLE replay_compute(struct replay *r, const struct step_view *v, struct step_result *result,
                        struct q_err *e)
{
    const size_t n = step_size(v->head);
    void *space = ring_step_space(r->ring), *memory;
    enum q_code rc;
    if (!space || n > r->info.step_bytes)
        return q_fail(e, Q_CORRUPT, "the step does not fit the worker's memory");
    memcpy(space, v->head, n);
    ((struct step_head *)space)->step = ++r->n_sent;
    ring_step_send(r->ring);
    while (!(memory = ring_result_next(r->ring)))
        if ((rc = replay_wait(r, e)))
            return rc;
    rc = step_result_view(result, memory, r->info.result_bytes, &r->info.limits, e);
    if (!rc && result->head->error)
        rc = q_fail(e, Q_CORRUPT, "the worker refused the step (%s): its reason is above",
                    q_code_name((enum q_code)result->head->error));
    ring_result_take(r->ring); /* stays readable until the second next step is sent */
    return rc;
}

/* ---- comparing ---- */

static const char *difference_of(const struct record_row *a, const struct record_row *b)
{
    if (a->slot != b->slot || a->position != b->position || a->flags != b->flags)
        return "rows";
    if (a->token != b->token)
        return "tokens";
    return a->sum != b->sum ? "logprobs" : NULL;
}

static void differs(struct replay *r, const struct record_item *item, const char *what,
                    const struct record_row *recorded, const struct record_row *computed)
{
    r->difference = (struct replay_difference){
        .step = item->view.head->step,
        .what = what,
        .has_row = recorded && computed,
    };
    if (recorded)
        r->difference.recorded = *recorded;
    if (computed)
        r->difference.computed = *computed;
}

static void compare(struct replay *r, const struct record_item *item,
                    const struct step_result *result)
{
    const uint32_t n = item->counts.n_row;
    const uint32_t n_now = result->head->n_row;
    record_rows(r->rows, result);
    for (uint32_t i = 0; i < n && i < n_now && !r->difference.step; i++) {
        const char *what = difference_of(&item->rows[i], &r->rows[i]);
        if (what)
            differs(r, item, what, &item->rows[i], &r->rows[i]);
        r->n_token += !(item->rows[i].flags & (RECORD_PROMPT | RECORD_REJECTED));
    }
    if (!r->difference.step && (n != n_now || item->counts.n_note != result->head->n_note))
        differs(r, item, "rows", n > n_now ? &item->rows[n_now] : NULL,
                n_now > n ? &r->rows[n] : NULL);
    r->n_step++;
    r->n_row += item->view.head->n_token;
}

static FALLIBLE run_step(struct replay *r, const struct record_item *item, struct q_err *e)
{
    struct step_result result;
    enum q_code rc = replay_fill(r, &item->view, e);
    if (!rc)
        rc = replay_compute(r, &item->view, &result, e);
    if (rc)
        return q_wrap(e, "step %llu", (unsigned long long)item->view.head->step);
    compare(r, item, &result);
    return Q_OK;
}

/* A new worker was recorded. */
static FALLIBLE forget_worker(struct replay *r, struct q_err *e)
{
    replay_fill_forget(r);
    return replay_adapters_forget(r, e);
}

FALLIBLE replay_run(struct replay *r, struct q_err *e)
{
    struct record_item item;
    bool more = true;
    enum q_code rc = Q_OK;
    while (!rc && !r->difference.step && !(rc = record_next(&r->file, &item, &more, e)) && more) {
        if (item.kind == RECORD_STEP)
            rc = run_step(r, &item, e);
        else if (item.kind == RECORD_SLOT)
            replay_fill_add(r, &item.view);
        else if (item.kind == RECORD_ITEMS)
            replay_items_add(r, &item.table);
        else if (item.kind == RECORD_ADAPTER)
            rc = replay_adapter(r, &item, e);
        else if (item.kind == RECORD_WORKER)
            rc = forget_worker(r, e);
        else
            r->end = item.reason;
    }
    return rc;
}
