/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/server/frontends_internal.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "proto/item_types.h"

#define BAD_LOG_EVERY_MS  1000
#define LATE_MS           1000 /* a loop whose heartbeat comes so late did not run meanwhile */
#define FINISH_EVERY_KEEP 0.9  /* weight of the past in the mean time between finishes */

FALLIBLE frontends_init(struct frontends *p, const struct server_config *c, struct q_err *e)
{
    memset(p, 0, sizeof *p);
    p->trial_fd = -1;
    p->config = c;
    p->arena = (struct arena)ARENA_INIT(2 * PROTO_FRAME_MAX);
    p->outbox = (struct outbox)OUTBOX_INIT;
    p->frontends = q_calloc(SERVER_FRONTENDS_MAX, sizeof *p->frontends);
    if (!p->frontends)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for %d frontends",
                      SERVER_FRONTENDS_MAX);
    p->started_ms = clock_ms();
    frontends_open_trials(p);
    enum q_code rc = streams_init(&p->streams, c->stream_bytes_max, e);
    if (rc)
        return rc;
    if (getrandom(&p->instance, sizeof p->instance, 0) != sizeof p->instance)
        return q_fail(e, Q_IO, "engine: cannot get random numbers: %s", strerror(errno));
    return hub_digest(p->digest, c->core.worker.model_dir, e);
}

void frontends_release(struct frontends *p)
{
    arena_release(&p->arena);
    buf_release(&p->frame);
    if (p->outbox_made)
        outbox_release(&p->outbox);
    streams_release(&p->streams);
    uploads_release(&p->uploads);
    if (p->trial_fd >= 0)
        close(p->trial_fd);
    p->trial_fd = -1;
    q_free(p->frontends);
    p->frontends = NULL;
    p->n = 0;
}

static struct proto_str str(const char *s)
{
    return (struct proto_str){s, strlen(s)};
}

/* A send failed. The received frames of the frontend are read first, because they may contain a
 * drain message. */
static void lose(struct frontend *to, enum q_code rc, const struct q_err *why)
{
    if (rc == Q_UNAVAILABLE) {
        to->lost = true;
        return;
    }
    log_warning("frontend %u failed: %s; dropped with its %u requests", to->frontend_id,
                why->message, to->n_open);
    to->removed = true;
}

void frontends_send(struct frontends *p, struct frontend *to, enum q_code rc, struct q_err *e)
{
    if (!rc)
        rc = socket_send(to->at.socket, &to->at.name, p->frame.data, p->frame.len, e);
    if (rc)
        lose(to, rc, e);
}

static struct frontend *find_frontend(struct frontends *p, const struct frontend_address *at)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct frontend *frontend = &p->frontends[i];
        if (frontend->at.socket == at->socket && !frontend->removed &&
            socket_peer_equal(&frontend->at.name, &at->name))
            return frontend;
    }
    return NULL;
}

/* Without the answer to a submit a frontend would wait for the request for ever. If it cannot be
 * sent, the frontend is dropped: it registers again and submits all that it has. */
void frontends_send_refusal(struct frontends *p, const struct frontend_address *to,
                            struct msg_error m, const struct q_err *why)
{
    struct q_err e = Q_ERR_INIT;
    m.code = str(q_code_name(why->code));
    m.message = str(why->message);
    buf_reset(&p->frame);
    enum q_code rc = msg_error_encode(&m, &p->frame, &e);
    if (!rc)
        rc = socket_send(to->socket, &to->name, p->frame.data, p->frame.len, &e);
    struct frontend *frontend = rc && m.req_id ? find_frontend(p, to) : NULL;
    if (frontend)
        lose(frontend, rc, &e);
    else if (rc)
        log_debug("cannot send an error to a frontend: %s", e.message);
}

void frontends_send_error(struct frontends *p, const struct frontend_address *to, uint64_t req_id,
                          const struct q_err *why, uint32_t retry_ms)
{
    const struct msg_error m = {.req_id = req_id, .retry_after_ms = retry_ms};
    frontends_send_refusal(p, to, m, why);
}

static void bad_frame(struct frontends *p, const char *why)
{
    p->n_bad_frame++;
    if (log_ratelimit(&p->bad_logged_ms, &p->n_bad_skipped, BAD_LOG_EVERY_MS)) {
        log_warning("frame dropped: %s (and %" PRIu64 " more since the last such line)", why,
                    p->n_bad_skipped);
        p->n_bad_skipped = 0;
    }
}

static struct proto_bytes adapter_bytes(const struct frontends *p, uint64_t *n_change)
{
    const struct buf *list = core_adapter_list(p->core, n_change);
    return (struct proto_bytes){(const uint8_t *)buf_str(list), list->len};
}

static void greet(struct frontends *p, struct frontend *to)
{
    uint64_t n_change;
    struct q_err e = Q_ERR_INIT;
    const struct core_info *info = core_info(p->core);
    const struct model_config *model = core_model_config(p->core);
    struct msg_hello m = {
        .wire_min = PROTO_WIRE_MIN,
        .wire_max = PROTO_WIRE_MAX,
        .version = str(QUIRE_VERSION),
        .digest = {p->digest, sizeof p->digest},
        .instance = p->instance,
        .model = str(p->config->model_name),
        .vocab_size = info->shape.vocab_size,
        .max_model_len = core_max_model_len(p->core),
        .max_num_seqs = info->limits.max_num_seqs,
        .credit = p->config->max_frontend_reqs,
        .heartbeat_ms = p->config->heartbeat_ms,
        .fingerprint = str(info->fingerprint),
        .eos_ids = {model->eos_ids, model->n_eos},
        .max_num_batched_tokens = info->limits.max_num_batched_tokens,
        .known = to->greeted,
        .item_credit = info->store_bytes,
        .death = str(p->config->death ? p->config->death : ""),
        .has_trials = true,
        .n_start = p->config->n_start,
        .has_tried = p->trial_fd >= 0,
        .tried = p->tried_before,
        .adapters = adapter_bytes(p, &n_change),
        .max_num_reqs = info->limits.max_num_seqs + p->config->core.queue_max,
    };
    struct item_types_wire types;
    item_types_put(&m, &types, core_item_types(p->core));
    if (!to->greeted)
        log_info("frontend %u connected", to->frontend_id);
    to->greeted = true;
    buf_reset(&p->frame);
    enum q_code rc = msg_hello_encode(&m, &p->frame, &e);
    frontends_send(p, to, rc, &e);
}

static FALLIBLE check_hello(const struct frontends *p, const struct msg_hello *m, struct q_err *e)
{
    if (m->wire_min > PROTO_WIRE_MAX || m->wire_max < PROTO_WIRE_MIN)
        return q_fail(e, Q_MISMATCH,
                      "incompatible versions: the frontend (%.*s) supports wire versions %u to %u, "
                      "the engine (%s) %u to %u",
                      (int)(m->version.n < 32 ? m->version.n : 32), m->version.data, m->wire_min,
                      m->wire_max, QUIRE_VERSION, PROTO_WIRE_MIN, PROTO_WIRE_MAX);
    if (m->digest.n != sizeof p->digest || memcmp(m->digest.data, p->digest, sizeof p->digest) != 0)
        return q_fail(e, Q_MISMATCH,
                      "the frontend's model folder differs from the engine's (config.json or "
                      "tokenizer); the engine's model is %s",
                      p->config->model_name);
    return Q_OK;
}

static struct frontend *add_frontend(struct frontends *p, const struct frontend_address *at,
                                     uint64_t instance)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->frontends[i].instance == instance)
            p->frontends[i].removed = true; /* the same process over a new connection */
    frontends_sweep(p);
    if (p->n >= SERVER_FRONTENDS_MAX)
        return NULL;
    struct frontend *added = &p->frontends[p->n++];
    *added =
        (struct frontend){.at = *at, .instance = instance, .frontend_id = ++p->frontend_id_last};
    return added;
}

static void on_hello(struct frontends *p, const struct frontend_address *from,
                     const struct msg_hello *m)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t percent;
    if (check_hello(p, m, &e)) {
        log_warning("frontend rejected: %s", e.message);
        frontends_send_error(p, from, 0, &e, 0);
        return;
    }
    struct frontend *frontend = find_frontend(p, from);
    if (frontend && frontend->instance != m->instance) {
        frontend->removed = true;
        frontend = NULL;
    }
    if (!frontend && !(frontend = add_frontend(p, from, m->instance))) {
        q_fail(&e, Q_NO_SPACE, "too many frontends: the engine accepts at most %d",
               SERVER_FRONTENDS_MAX);
        frontends_send_error(p, from, 0, &e, 0);
        return;
    }
    frontend->heard_ms = clock_ms();
    if (core_state(p->core, &percent) == CORE_LOADING) {
        q_fail(&e, Q_UNAVAILABLE, "loading %u %%", percent);
        frontends_send_error(p, from, 0, &e, 0);
    } else {
        greet(p, frontend);
    }
}

static void on_abort(struct frontends *p, struct frontend *from, const struct msg_abort *m)
{
    for (size_t i = 0; i < m->req_ids.n; i++) {
        const uint64_t req_id = m->req_ids.data[i];
        streams_close(&p->streams, from->frontend_id, req_id, clock_ms());
        if (uploads_drop(&p->uploads, from->frontend_id, req_id) ||
            core_abort(p->core, from->frontend_id, req_id))
            from->n_open -= from->n_open > 0;
    }
}

/* A mode that this build does not know is the one that loses nothing. */
static enum in_flight_mode mode_of(uint32_t wanted)
{
    return wanted < IN_FLIGHT_MODES ? (enum in_flight_mode)wanted : IN_FLIGHT_KEEP;
}

static void on_control(struct frontends *p, struct frontend *from, const struct msg_control *m)
{
    struct q_err e = Q_ERR_INIT;
    log_info("frontend %u requested sleep %u, pause %u", from->frontend_id, m->sleep, m->pause);
    if (m->sleep == CONTROL_WAKE)
        core_wake(p->core);
    else if (m->sleep && core_sleep(p->core, m->sleep, &e))
        log_warning("%s", e.message);
    if (m->pause == CONTROL_PAUSE)
        core_pause(p->core, mode_of(m->pause_mode), m->clear_cache);
    else if (m->pause)
        core_resume(p->core);
}

/* e->code Q_OK: done, and its message is the path it is about. */
static void send_command_done(struct frontends *p, struct frontend *to, uint64_t order_id,
                              const struct q_err *e)
{
    struct q_err failed = Q_ERR_INIT;
    const struct msg_command_done m = {
        .order_id = order_id,
        .code = str(e->code ? q_code_name(e->code) : "OK"),
        .message = str(e->message),
    };
    buf_reset(&p->frame);
    enum q_code rc = msg_command_done_encode(&m, &p->frame, &failed);
    frontends_send(p, to, rc, &failed);
}

static bool is_within(const char *path, const char *root)
{
    char real[PATH_MAX];
    const size_t n = realpath(root, real) ? strlen(real) : 0;
    return n && !strncmp(path, real, n) && (!path[n] || path[n] == '/' || real[n - 1] == '/');
}

/* The same of a folder elsewhere and of none: a client does not learn which there are. */
static enum q_code check_root(const struct server_config *c, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    bool is_allowed = false;
    if (realpath(dir, path)) {
        is_allowed = !c->n_weight_root && is_within(path, c->core.worker.model_dir);
        for (uint32_t i = 0; i < c->n_weight_root && !is_allowed; i++)
            is_allowed = is_within(path, c->weight_roots[i]);
    }
    if (is_allowed)
        return Q_OK;
    return q_fail(e, Q_INVALID, "weights_path: %.200s is not in %s", dir,
                  c->n_weight_root ? "a folder of --allowed-weights-path"
                                   : "the served model's folder; others are named by "
                                     "--allowed-weights-path");
}

static enum q_code reload(struct frontends *p, struct frontend *from, const struct msg_command *m,
                          struct q_err *e)
{
    char dir[PATH_MAX];
    if (m->path.n >= sizeof dir || (m->path.n && memchr(m->path.data, 0, m->path.n)))
        return q_fail(e, Q_INVALID, "weights_path: not a valid path");
    if (m->path.n)
        memcpy(dir, m->path.data, m->path.n);
    dir[m->path.n] = '\0';
    enum q_code rc = *dir ? check_root(p->config, dir, e) : Q_OK;
    if (rc || (rc = core_reload(p->core, dir, mode_of(m->mode), e)))
        return rc;
    p->reload_frontend_id = from->frontend_id;
    p->reload_id = m->order_id;
    return Q_OK;
}

/* The engine that takes this one's place has the same adapters. */
static void remember_adapters(const struct frontends *p)
{
    struct q_err e = Q_ERR_INIT;
    uint64_t n_change;
    const struct buf *list = core_adapter_list(p->core, &n_change);
    const char *path = p->config->adapters_file;
    if (path && file_write(path, buf_str(list), list->len, 0600, &e))
        log_warning("%s", e.message);
}

static enum q_code text_of(char *out, size_t size, struct proto_str text, const char *field,
                           struct q_err *e)
{
    if (!text.n || text.n >= size || memchr(text.data, 0, text.n))
        return q_fail(e, Q_INVALID, "%s: expected a text of 1 to %zu bytes", field, size - 1);
    snprintf(out, size, "%.*s", (int)text.n, text.data);
    return Q_OK;
}

/* On success the message is the adapter's name. */
static enum q_code change_adapter(struct frontends *p, const struct msg_command *m, struct q_err *e)
{
    const bool loads = m->kind == ENGINE_COMMAND_LOAD_ADAPTER;
    struct adapter_module module = {"", ""};
    enum q_code rc = text_of(module.name, sizeof module.name, m->name, "lora_name", e);
    if (!rc && loads)
        rc = text_of(module.path, sizeof module.path, m->path, "lora_path", e);
    if (!rc)
        rc = loads ? core_load_adapter(p->core, &module, m->in_place, e)
                   : core_unload_adapter(p->core, module.name, e);
    if (rc)
        return rc;
    streams_clear(&p->streams); /* an adapter of the same name may differ from now on */
    remember_adapters(p);
    frontends_beat(p, clock_ms()); /* before the reply */
    snprintf(e->message, sizeof e->message, "%s", module.name);
    return Q_OK;
}

static void on_command(struct frontends *p, struct frontend *from, const struct msg_command *m)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc;
    log_info("frontend %u sent command %u", from->frontend_id, m->kind);
    if (m->kind == ENGINE_COMMAND_RELOAD) {
        if (reload(p, from, m, &e))
            send_command_done(p, from, m->order_id, &e);
        return;
    }
    if (m->kind == ENGINE_COMMAND_LOAD_ADAPTER || m->kind == ENGINE_COMMAND_UNLOAD_ADAPTER) {
        (void)change_adapter(p, m, &e);
        send_command_done(p, from, m->order_id, &e);
        return;
    }
    if (m->kind == ENGINE_COMMAND_START_PROFILE)
        rc = core_profile_start(p->core, &e);
    else if (m->kind == ENGINE_COMMAND_STOP_PROFILE)
        rc = core_profile_stop(p->core, &e);
    else
        rc = q_fail(&e, Q_UNSUPPORTED, "the engine (%s) does not support command %u", QUIRE_VERSION,
                    m->kind);
    if (!rc)
        snprintf(e.message, sizeof e.message, "%s", core_profile_path(p->core));
    send_command_done(p, from, m->order_id, &e);
}

/* The engine that takes this one's place loads the same weights. */
void frontends_remember_identity(const struct frontends *p)
{
    struct q_err e = Q_ERR_INIT;
    const char *path = p->config->identity_file;
    if (path && file_write(path, core_weights_identity(p->core), WEIGHTS_IDENTITY_BYTES, 0600, &e))
        log_warning("%s", e.message);
}

static void remember_weights(const struct frontends *p)
{
    struct q_err e = Q_ERR_INIT;
    const char *path = p->config->weights_file, *dir = core_weights_dir(p->core);
    if (path && file_write(path, dir, strlen(dir), 0600, &e))
        log_warning("%s", e.message);
}

void frontends_answer_commands(struct frontends *p)
{
    struct q_err result = Q_ERR_INIT;
    if (!p->core || !core_take_reload(p->core, &result))
        return;
    if (!result.code) {
        snprintf(result.message, sizeof result.message, "%s", core_weights_dir(p->core));
        streams_clear(&p->streams); /* they are answers of other weights */
        remember_weights(p);
        frontends_remember_identity(p);
    }
    for (uint32_t i = 0; i < p->n; i++)
        if (p->frontends[i].frontend_id == p->reload_frontend_id && !p->frontends[i].removed)
            send_command_done(p, &p->frontends[i], p->reload_id, &result);
}

/* Handle a frame of a frontend that has received hello. False: the frame is malformed; `e` has the
 * reason. */
static bool handle(struct frontends *p, struct frontend *from, const void *frame, size_t n,
                   struct q_err *e)
{
    union {
        struct msg_submit submit;
        struct msg_item_piece item_piece;
        struct msg_abort abort;
        struct msg_heartbeat heartbeat;
        struct msg_drain drain;
        struct msg_reset_prefix_cache reset;
        struct msg_control control;
        struct msg_command order;
        struct msg_keep_stream keep_stream;
        struct msg_resume_stream resume_stream;
    } m;
    switch (proto_peek(frame, n)) {
    case MSG_submit:
        if (msg_submit_decode(&m.submit, frame, n, &p->arena, e))
            return false;
        frontends_on_submit(p, from, &m.submit, &(struct proto_bytes){frame, n});
        return true;
    case MSG_item_piece:
        return !msg_item_piece_decode(&m.item_piece, frame, n, &p->arena, e) &&
               !frontends_on_item_piece(p, from, &m.item_piece, e);
    case MSG_abort:
        if (msg_abort_decode(&m.abort, frame, n, &p->arena, e))
            return false;
        on_abort(p, from, &m.abort);
        return true;
    case MSG_reset_prefix_cache:
        if (msg_reset_prefix_cache_decode(&m.reset, frame, n, &p->arena, e))
            return false;
        log_info("frontend %u resets the prefix cache: %.*s", from->frontend_id,
                 (int)m.reset.reason.n, m.reset.reason.data);
        core_reset_prefix_cache(p->core);
        return true;
    case MSG_control:
        if (msg_control_decode(&m.control, frame, n, &p->arena, e))
            return false;
        on_control(p, from, &m.control);
        return true;
    case MSG_command:
        if (msg_command_decode(&m.order, frame, n, &p->arena, e))
            return false;
        on_command(p, from, &m.order);
        return true;
    case MSG_keep_stream:
        return !msg_keep_stream_decode(&m.keep_stream, frame, n, &p->arena, e) &&
               !frontends_on_keep_stream(p, &m.keep_stream, e);
    case MSG_resume_stream:
        if (msg_resume_stream_decode(&m.resume_stream, frame, n, &p->arena, e))
            return false;
        frontends_on_resume_stream(p, from, &m.resume_stream);
        return true;
    case MSG_heartbeat:
        if (msg_heartbeat_decode(&m.heartbeat, frame, n, &p->arena, e))
            return false;
        p->asked |= m.heartbeat.ask;
        return true;
    case MSG_drain:
        if (msg_drain_decode(&m.drain, frame, n, &p->arena, e))
            return false;
        log_info("frontend %u disconnected", from->frontend_id);
        from->removed = true;
        return true;
    default:
        return true; /* of a later version: skipped */
    }
}

/* A submit before the hello: the sender talks to an engine that is not there any more. */
static void on_stranger(struct frontends *p, const struct frontend_address *from, const void *frame,
                        size_t n)
{
    struct q_err e = Q_ERR_INIT;
    struct msg_submit m;
    if (proto_peek(frame, n) != MSG_submit)
        return;
    if (msg_submit_decode(&m, frame, n, &p->arena, &e)) {
        bad_frame(p, e.message);
        return;
    }
    q_fail(&e, Q_UNAVAILABLE,
           "the frontend is not registered with this engine: it must send hello first");
    frontends_send_error(p, from, m.req_id, &e, 0);
}

void frontends_receive(struct frontends *p, const struct frontend_address *from, const void *frame,
                       size_t n)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t tag = proto_peek(frame, n);
    struct frontend *frontend = find_frontend(p, from);
    if (frontend)
        frontend->heard_ms = clock_ms();
    if (tag == MSG_NONE) {
        bad_frame(p, "no known message");
    } else if (tag == MSG_hello) {
        struct msg_hello m;
        if (msg_hello_decode(&m, frame, n, &p->arena, &e)) {
            bad_frame(p, e.message);
        } else {
            socket_admit(from->socket);
            on_hello(p, from, &m);
        }
    } else if (!frontend || !frontend->greeted) {
        on_stranger(p, from, frame, n);
    } else if (!handle(p, frontend, frame, n, &e)) {
        bad_frame(p, e.message);
    }
    arena_reset(&p->arena);
}

FALLIBLE frontends_ready(struct frontends *p, struct q_err *e)
{
    enum q_code rc = outbox_init(&p->outbox, &core_info(p->core)->limits, e);
    if (rc)
        return rc;
    p->outbox_made = true;
    p->uploads.bytes_max = core_info(p->core)->store_bytes;
    for (uint32_t i = 0; i < p->n; i++)
        if (!p->frontends[i].greeted && !p->frontends[i].removed)
            greet(p, &p->frontends[i]);
    return Q_OK;
}

static void count_finishes(struct frontends *p, uint32_t n)
{
    int64_t now = clock_ms();
    if (!n)
        return;
    if (p->finish_ms) {
        double every = (double)(now - p->finish_ms) / n;
        p->finish_every_ms =
            p->finish_every_ms * FINISH_EVERY_KEEP + every * (1 - FINISH_EVERY_KEEP);
    }
    p->finish_ms = now;
}

/* Requests that ended with a reason of their own: an error message each. */
static void send_reasons(struct frontends *p, struct frontend *to, const struct outbox_step *step)
{
    for (uint32_t i = 0; i < step->n; i++) {
        const struct scheduler_output *o = &step->outputs[i];
        if (o->frontend_id != to->frontend_id || !o->why)
            continue;
        frontends_send_error(p, &to->at, o->req_id, o->why,
                             o->why->code == Q_NO_SPACE ? frontends_retry_ms(p, 0) : 0);
        to->n_open -= to->n_open > 0;
        streams_close(&p->streams, to->frontend_id, o->req_id, clock_ms());
    }
}

void frontends_output(void *ctx, const struct step_result *result,
                      const struct scheduler_output *outputs, uint32_t n)
{
    struct frontends *p = ctx;
    if (n && outputs[0].is_accepted) {
        for (uint32_t i = 0; i < p->n; i++)
            if (p->frontends[i].frontend_id == outputs[0].frontend_id && !p->frontends[i].removed)
                frontends_tell_expanded(p, &p->frontends[i], outputs[0].req_id);
        return;
    }
    const struct outbox_step step = {result, outputs, n};
    for (uint32_t i = 0; i < p->n; i++) {
        struct frontend *to = &p->frontends[i];
        struct q_err e = Q_ERR_INIT;
        uint32_t n_request;
        if (to->removed || to->lost || !to->n_open)
            continue;
        send_reasons(p, to, &step);
        enum q_code rc = outbox_fill(&p->outbox, to->frontend_id, &step, &n_request, &e);
        if (!rc && !n_request)
            continue;
        frontends_keep_outputs(p, to); /* before the frontend can show them to a client */
        if (!rc)
            rc = socket_send(to->at.socket, &to->at.name, p->outbox.frame.data, p->outbox.frame.len,
                             &e);
        if (rc)
            lose(to, rc, &e);
        to->n_open -= p->outbox.n_finished < to->n_open ? p->outbox.n_finished : to->n_open;
        count_finishes(p, p->outbox.n_finished);
    }
}

static FALLIBLE encode_beat(struct frontends *p, struct q_err *e)
{
    struct scheduler_stats s;
    core_stats(p->core, &s);
    const struct msg_heartbeat m = {
        .step = s.step,
        .n_running = s.n_running,
        .n_waiting = s.n_waiting,
        .n_swapped = s.n_swapped,
        .kv_blocks_used = s.kv_blocks_used,
        .kv_blocks_total = s.kv_blocks_total,
        .prompt_tokens = s.prompt_tokens,
        .generation_tokens = s.generation_tokens,
        .n_preemption = s.n_preemption,
        .prefix_queries = s.prefix_queries,
        .prefix_hits = s.prefix_hits,
        .n_aborted = s.n_aborted,
        .draining = p->draining,
        .n_bad_frame = p->n_bad_frame,
        .n_timeout = s.n_timeout,
        .n_pushed_out = s.n_pushed_out,
        .n_tenant = s.n_tenant,
        .iteration_tokens = {s.iteration_tokens,
                             sizeof s.iteration_tokens / sizeof *s.iteration_tokens},
        .n_draft = s.n_draft,
        .n_draft_token = s.n_draft_token,
        .accepted_at = {s.accepted_at, sizeof s.accepted_at / sizeof *s.accepted_at},
        .n_forced_token = s.n_forced_token,
        .n_forced_accepted = s.n_forced_accepted,
        .sleep_level = core_sleep_level(p->core),
        .paused = core_paused(p->core),
        .swap_blocks_used = s.swap_blocks_used,
        .swap_blocks_total = s.swap_blocks_total,
        .n_swap_out = s.n_swap_out,
        .n_gap = s.n_gap,
        .gap_us = s.gap_us,
        .pausing = core_pausing(p->core),
        .refusing = core_refusing(p->core),
        .fingerprint = str(core_info(p->core)->fingerprint),
        .adapters = adapter_bytes(p, &p->sent_adapters),
        .has_adapters = true,
    };
    p->sent_sleep_level = m.sleep_level;
    p->sent_paused = m.paused;
    p->sent_pausing = m.pausing;
    p->sent_refusing = m.refusing;
    p->asked = false;
    snprintf(p->sent_fingerprint, sizeof p->sent_fingerprint, "%s",
             core_info(p->core)->fingerprint);
    buf_reset(&p->frame);
    return msg_heartbeat_encode(&m, &p->frame, e);
}

/* While this loop did not run (a frozen container, SIGSTOP) it has not listened to the frontends:
 * that time is no silence of theirs. */
static void note_beat(struct frontends *p, int64_t now_ms)
{
    const int64_t late_ms = (int64_t)p->config->heartbeat_ms + LATE_MS;
    const int64_t gap_ms = clock_gap_ms(&p->beat_ms, now_ms, late_ms);
    for (uint32_t i = 0; i < p->n; i++)
        p->frontends[i].heard_ms = clock_skip_gap(p->frontends[i].heard_ms, gap_ms, now_ms);
}

void frontends_beat(struct frontends *p, int64_t now_ms)
{
    struct q_err e = Q_ERR_INIT;
    note_beat(p, now_ms);
    enum q_code rc = encode_beat(p, &e);
    int64_t silent_ms = (int64_t)p->config->heartbeat_ms * SERVER_SILENT_BEATS;
    if (silent_ms < SERVER_SILENT_MIN_MS)
        silent_ms = SERVER_SILENT_MIN_MS;
    streams_tick(&p->streams, now_ms);
    frontends_end_silent_uploads(p, now_ms);
    for (uint32_t i = 0; i < p->n; i++) {
        struct frontend *to = &p->frontends[i];
        if (to->removed || to->lost)
            continue;
        if (now_ms - to->heard_ms > silent_ms) {
            log_warning("frontend %u sent no message for %lld ms: dropped with its %u requests",
                        to->frontend_id, (long long)(now_ms - to->heard_ms), to->n_open);
            to->removed = true;
        } else if (to->greeted) {
            frontends_send(p, to, rc, &e);
        }
    }
}

bool frontends_news(const struct frontends *p)
{
    uint64_t n_change;
    (void)core_adapter_list(p->core, &n_change);
    return p->asked || n_change != p->sent_adapters ||
           core_sleep_level(p->core) != p->sent_sleep_level ||
           core_refusing(p->core) != p->sent_refusing || core_paused(p->core) != p->sent_paused ||
           core_pausing(p->core) != p->sent_pausing ||
           strcmp(core_info(p->core)->fingerprint, p->sent_fingerprint) != 0;
}

void frontends_drain(struct frontends *p, const char *reason)
{
    struct q_err e = Q_ERR_INIT;
    const struct msg_drain m = {.reason = str(reason)};
    struct q_err why = Q_ERR_INIT;
    p->draining = true;
    q_fail_text(&why, Q_UNAVAILABLE, "the engine is shutting down");
    frontends_end_uploads(p, &why);
    buf_reset(&p->frame);
    enum q_code rc = msg_drain_encode(&m, &p->frame, &e);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->frontends[i].greeted && !p->frontends[i].removed && !p->frontends[i].lost)
            frontends_send(p, &p->frontends[i], rc, &e);
}

void frontends_received(struct frontends *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct frontend *frontend = &p->frontends[i];
        if (!frontend->lost || frontend->removed)
            continue;
        log_line(p->draining ? LOG_INFO : LOG_WARNING,
                 "frontend %u dropped with its %u requests: it closed its connection unexpectedly",
                 frontend->frontend_id, frontend->n_open);
        frontend->removed = true;
    }
}

void frontends_sweep(struct frontends *p)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->frontends[i].removed) {
            if (p->frontends[i].instance == p->tried)
                frontends_note_trial(p, 0);
            streams_leave(&p->streams, p->frontends[i].frontend_id, clock_ms());
            uploads_leave(&p->uploads, p->frontends[i].frontend_id);
            core_abort_frontend(p->core, p->frontends[i].frontend_id);
        } else {
            p->frontends[n_kept++] = p->frontends[i];
        }
    }
    p->n = n_kept;
    frontends_end_trial(p);
}
