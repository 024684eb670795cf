/* SPDX-License-Identifier: Apache-2.0 */
/* Submits: from a message to the core. Few bytes of items are in the message, many in shared memory
 * or in messages of their own, between which other requests go on (uploads.h). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "engine/server/frontends_internal.h"

#define RETRY_MIN_MS      100
#define RETRY_MAX_MS      60000
#define TRIAL_WAIT_MS     1000 /* a request with `alone` is submitted again within that */
/* So long may other requests go on while one with `alone` waits: short ones end, and no new one is
 * accepted. Then all go back to their frontends, which submit them again, with the tokens so far,
 * when the trial is over; without that one long answer would stop all new ones until its end. */
#define TRIAL_PATIENCE_MS 1000
/* A crash may come after its request: so long after the end of a trial nothing is accepted, so that
 * it is not that of the next one on trial. */
#define TRIAL_AFTER_MS    20

/* A tenth of the queue has gone then, at the pace requests finish now. */
uint32_t frontends_retry_ms(const struct frontends *p, size_t n_prompt)
{
    struct scheduler_stats stats;
    core_stats(p->core, &stats);
    const uint32_t excess_ms = core_ttft_excess_ms(p->core, n_prompt);
    double ms = excess_ms ? excess_ms
                          : p->finish_every_ms * (1 + (stats.n_waiting + stats.n_swapped) / 10.0);
    return ms < RETRY_MIN_MS ? RETRY_MIN_MS : ms > RETRY_MAX_MS ? RETRY_MAX_MS : (uint32_t)ms;
}

/* A submit whose items are in shared memory. */
static enum q_code submit_memory(struct frontends *p, const struct frontend *from,
                                 const struct msg_submit *m, struct q_err *e)
{
    struct item_contents contents = ITEM_CONTENTS_INIT;
    uint32_t n = 0;
    if (strncmp(socket_address(from->at.socket), "ipc://", 6) != 0)
        return q_fail(e, Q_INVALID, "submit: shared memory is accepted over ipc:// only");
    enum q_code rc = item_wire_count(&n, m, e);
    if (rc || (rc = item_memory_open(&contents.fd, m->item_memory.data, m->item_memory.n,
                                     m->item_bytes, e)))
        return rc;
    contents.memory = q_alloc(m->item_bytes); /* its pages are touched where it is read */
    contents.n_byte = m->item_bytes;
    struct item_array *items = arena_alloc_array(&p->arena, n + 1, sizeof *items);
    if (!items || !contents.memory)
        rc = q_fail(e, Q_NO_MEMORY, "submit: out of memory for %u items", n);
    else if (!(rc = item_wire_read(items, n, m, contents.memory, m->item_bytes, e)))
        rc = core_submit_contents(p->core, from->frontend_id, m,
                                  &(struct core_submit_items_args){items, n, &contents}, e);
    item_contents_release(&contents);
    return rc;
}

static void free_frame(void *frame)
{
    socket_frame_free(frame);
}

/* A submit whose items are in its frame: the frame stays until a thread has read large ones. */
static enum q_code submit_frame(struct frontends *p, const struct frontend *from,
                                const struct msg_submit *m, struct q_err *e)
{
    struct item_contents contents = ITEM_CONTENTS_INIT;
    uint32_t n = 0;
    if (m->item_data.n <= ITEM_INTAKE_INLINE / sizeof(uint64_t))
        return core_submit(p->core, from->frontend_id, m, e);
    enum q_code rc = item_wire_count(&n, m, e);
    if (rc)
        return rc;
    struct item_array *items = arena_alloc_array(&p->arena, n + 1, sizeof *items);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "submit: out of memory for %u items", n);
    if ((rc = item_wire_read(items, n, m, NULL, 0, e)))
        return rc;
    contents.frame = socket_keep(from->at.socket);
    contents.free_frame = free_frame;
    if (!contents.frame)
        return q_fail(e, Q_NO_MEMORY, "submit: out of memory for a frame");
    return core_submit_contents(p->core, from->frontend_id, m,
                                &(struct core_submit_items_args){items, n, &contents}, e);
}

void frontends_tell_expanded(struct frontends *p, struct frontend *to, uint64_t req_id)
{
    struct q_err e = Q_ERR_INIT;
    const struct core_expansions *x = core_expansions(p->core);
    const struct msg_expanded m = {
        .req_id = req_id,
        .positions = {x->positions, x->n},
        .n_token = {x->n_token, x->n},
    };
    if (!x->n)
        return;
    buf_reset(&p->frame);
    enum q_code rc = msg_expanded_encode(&m, &p->frame, &e);
    frontends_send(p, to, rc, &e);
}

static FALLIBLE may_begin(const struct frontends *p, const struct msg_submit *m, struct q_err *e)
{
    if (p->draining)
        return q_fail(e, Q_UNAVAILABLE, "the engine is shutting down");
    if (core_refusing(p->core) && !m->emitted.n) /* its frontend has not heard of it yet */
        return q_fail(e, Q_UNAVAILABLE, "generation is paused; retry after it resumes");
    return Q_OK;
}

/* All requests go back to their frontends, which keep prompt and tokens. */
static void give_back(struct frontends *p)
{
    struct q_err why = Q_ERR_INIT;
    q_fail_text(&why, Q_UNAVAILABLE, "a request that may crash the engine is tried alone");
    log_info("a request that may crash the engine is tried alone: all others are submitted again");
    frontends_end_uploads(p, &why);
    core_end_all(p->core, &why);
}

/* A request with `alone` waits for the end of others. */
static void wait_for_others(struct frontends *p, int64_t now)
{
    if (now >= p->trial_until_ms)
        p->trial_asked_ms = now;
    p->trial_until_ms = now + TRIAL_WAIT_MS;
    if (!p->on_trial && now - p->trial_asked_ms >= TRIAL_PATIENCE_MS && !core_pausing(p->core) &&
        !core_paused(p->core))
        give_back(p);
}

void frontends_open_trials(struct frontends *p)
{
    const char *path = p->config->trial_file;
    p->trial_fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (path && p->trial_fd < 0)
        log_warning("%s: %s: after a crash it is not known which request was tried alone", path,
                    strerror(errno));
    if (p->trial_fd < 0)
        return;
    p->tried = 1; /* to be replaced */
    if (pread(p->trial_fd, &p->tried_before, sizeof p->tried_before, 0) != sizeof p->tried_before)
        p->tried_before = 0;
    frontends_note_trial(p, 0);
}

void frontends_note_trial(struct frontends *p, uint64_t instance)
{
    if (p->trial_fd < 0 || p->tried == instance)
        return;
    p->tried = instance;
    if (pwrite(p->trial_fd, &instance, sizeof instance, 0) != sizeof instance)
        log_warning("%s: %s", p->config->trial_file, strerror(errno));
}

void frontends_end_trial(struct frontends *p)
{
    if (!p->on_trial || core_works(p->core) || p->uploads.first)
        return;
    p->on_trial = false;
    p->after_trial_ms = clock_ms() + TRIAL_AFTER_MS;
}

/* A request that may be what engines crash of is alone with the engine, whichever frontend sent it:
 * while it waits for that, which is not for long, no other one is accepted. Its frontend learns
 * that it has its turn before it submits the request: one whose submit was on its way at a crash
 * knows that it was not the cause. Errors: Q_UNAVAILABLE, to be sent again; *is_turn: at once. */
static FALLIBLE check_trial(struct frontends *p, const struct frontend *from,
                            const struct msg_submit *m, bool *is_turn, struct q_err *e)
{
    frontends_end_trial(p);
    const int64_t now = clock_ms();
    const bool is_busy = core_busy(p->core) || p->uploads.first, is_kept = now < p->trial_until_ms;
    const bool is_after = now < p->after_trial_ms;
    if (!m->alone)
        return p->on_trial || is_after || is_kept
                   ? q_fail(e, Q_UNAVAILABLE, "a request that may crash the engine is tried alone")
                   : Q_OK;
    if (!is_busy && (p->on_trial || is_after))
        return q_fail(e, Q_UNAVAILABLE, "another request has just been tried alone");
    if (is_busy || (is_kept && p->turn_of && p->turn_of != from->frontend_id)) {
        if (is_busy)
            wait_for_others(p, now);
        return q_fail(e, Q_UNAVAILABLE, "the engine has another request");
    }
    *is_turn = !is_kept || p->turn_of != from->frontend_id;
    p->trial_until_ms = *is_turn ? now + TRIAL_WAIT_MS : 0;
    p->turn_of = *is_turn ? from->frontend_id : 0;
    return *is_turn ? q_fail(e, Q_UNAVAILABLE, "it has its turn") : Q_OK;
}

static FALLIBLE begin_upload(struct frontends *p, const struct frontend *from,
                             const struct msg_submit *m, const struct proto_bytes *frame,
                             struct q_err *e)
{
    return uploads_begin(&p->uploads, m,
                         &(struct upload_place){
                             .frontend_id = from->frontend_id,
                             .frame = frame->data,
                             .n = frame->n,
                             .now_ms = clock_ms(),
                         },
                         e);
}

static void refuse(struct frontends *p, struct frontend *from, const struct msg_submit *m,
                   bool is_turn, const struct q_err *why)
{
    const bool is_trial_short = p->on_trial || clock_ms() < p->after_trial_ms;
    const struct msg_error refused = {
        .req_id = m->req_id,
        .retry_after_ms = why->code == Q_NO_SPACE      ? frontends_retry_ms(p, m->prompt.n)
                          : m->alone && is_trial_short ? TRIAL_AFTER_MS
                                                       : 0,
        .alone = is_turn,
    };
    streams_close(&p->streams, from->frontend_id, m->req_id, clock_ms());
    frontends_send_refusal(p, &from->at, refused, why);
}

void frontends_on_submit(struct frontends *p, struct frontend *from, const struct msg_submit *m,
                         const struct proto_bytes *frame)
{
    struct q_err e = Q_ERR_INIT;
    bool is_turn = false;
    enum q_code rc = may_begin(p, m, &e);
    if (!rc && from->n_open >= p->config->max_frontend_reqs)
        rc = q_fail(&e, Q_NO_SPACE,
                    "this frontend has the maximum of %u open requests; retry later", from->n_open);
    if (!rc)
        rc = check_trial(p, from, m, &is_turn, &e);
    if (!rc) /* now: a plugin reads items of it before it is accepted */
        frontends_note_trial(p, m->alone ? from->instance : 0);
    if (!rc && m->stream_id.n && !streams_open(&p->streams, from->frontend_id, m))
        rc = q_fail(&e, Q_CANCELLED, "the stream was resumed over another connection");
    if (!rc)
        rc = m->in_pieces       ? begin_upload(p, from, m, frame, &e)
             : m->item_memory.n ? submit_memory(p, from, m, &e)
                                : submit_frame(p, from, m, &e);
    if (rc) {
        refuse(p, from, m, is_turn, &e);
        return;
    }
    from->n_open++;
    p->on_trial = m->alone;
    if (!m->in_pieces && !core_items_pending(p->core, from->frontend_id, m->req_id))
        frontends_tell_expanded(p, from, m->req_id);
}

/* ---- items in pieces ---- */

static struct frontend *frontend_of(struct frontends *p, uint32_t frontend_id)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->frontends[i].frontend_id == frontend_id && !p->frontends[i].removed &&
            !p->frontends[i].lost)
            return &p->frontends[i];
    return NULL;
}

/* End an upload with an error. */
static void fail_upload(struct frontends *p, struct upload *x, const struct q_err *why)
{
    struct frontend *of = frontend_of(p, x->frontend_id);
    if (of) {
        refuse(p, of, &(struct msg_submit){.req_id = x->req_id}, false, why);
        of->n_open -= of->n_open > 0;
    }
    uploads_take(&p->uploads, x);
    upload_free(x);
}

void frontends_end_uploads(struct frontends *p, const struct q_err *why)
{
    while (p->uploads.first)
        fail_upload(p, p->uploads.first, why);
}

void frontends_end_silent_uploads(struct frontends *p, int64_t now_ms)
{
    struct q_err why = Q_ERR_INIT;
    struct upload *x;
    q_fail_text(&why, Q_TIMEOUT, "multi_modal_data: no bytes were received for %d s",
                UPLOAD_SILENT_MS / 1000);
    while ((x = uploads_silent(&p->uploads, now_ms)))
        fail_upload(p, x, &why);
}

/* All is there: as a submit whose contents were read from shared memory. */
static FALLIBLE submit_upload(struct frontends *p, struct upload *x, struct q_err *e)
{
    struct item_contents contents = ITEM_CONTENTS_INIT;
    struct msg_submit m;
    uint32_t n = 0;
    enum q_code rc = msg_submit_decode(&m, x->submit.data, x->submit.len, &p->arena, e);
    if (rc || (rc = may_begin(p, &m, e)) || (rc = item_wire_count(&n, &m, e)))
        return rc;
    m.age_ms += (uint64_t)(clock_ms() - x->began_ms);
    struct item_array *items = arena_alloc_array(&p->arena, n + 1, sizeof *items);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "submit: out of memory for %u items", n);
    if ((rc = item_wire_read(items, n, &m, x->contents, x->n_byte, e)))
        return rc;
    contents.memory = x->contents;
    contents.n_byte = x->n_byte;
    x->contents = NULL;
    return core_submit_contents(p->core, x->frontend_id, &m,
                                &(struct core_submit_items_args){items, n, &contents}, e);
}

static void finish_upload(struct frontends *p, struct frontend *from, struct upload *x)
{
    struct q_err e = Q_ERR_INIT;
    const uint64_t req_id = x->req_id;
    if (submit_upload(p, x, &e)) {
        fail_upload(p, x, &e);
        return;
    }
    uploads_take(&p->uploads, x);
    upload_free(x);
    if (!core_items_pending(p->core, from->frontend_id, req_id))
        frontends_tell_expanded(p, from, req_id);
}

FALLIBLE frontends_on_item_piece(struct frontends *p, struct frontend *from,
                                 const struct msg_item_piece *m, struct q_err *e)
{
    struct upload *x = uploads_find(&p->uploads, from->frontend_id, m->req_id);
    struct q_err failed = Q_ERR_INIT;
    if (!x)
        return Q_OK; /* refused or aborted while the piece was on its way */
    enum q_code rc = upload_add(x, m, clock_ms(), e);
    if (rc) {
        fail_upload(p, x, e);
        return rc;
    }
    const struct msg_items_received r = {.req_id = m->req_id, .n_byte = x->n_have};
    buf_reset(&p->frame);
    frontends_send(p, from, msg_items_received_encode(&r, &p->frame, &failed), &failed);
    if (upload_is_whole(x))
        finish_upload(p, from, x);
    return Q_OK;
}
