/* SPDX-License-Identifier: Apache-2.0 */
/* A generation is in one of two lists: waiting (here) or running (in the engine). Each submission
 * has its own wire id, so late output for an earlier submission of the same generation matches no
 * id and is dropped.
 *
 *   link_open ──▶ waiting ── credit, engine up ──▶ running ── finish, error ──▶ closed
 *                    ▲                                │
 *                    └──── engine away, gap, full ────┘ */
#include "frontend/link/link.h"

#include <inttypes.h>
#include <openssl/rand.h>
#include <string.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/link/link_internal.h"

#define HELLO_EVERY_MS   200 /* while no engine answers */
#define SILENCE_BEATS    4   /* missed heartbeats after which the engine counts as lost */
#define SILENCE_MIN_MS   3000
#define HANG_BEATS       10 /* time without an answer after which the engine hangs */
#define HANG_MIN_MS      10000
#define BEAT_EVERY_MS    250  /* maximum interval of our heartbeats; one that fails shows a loss */
#define REFUSED_EVERY_MS 2000 /* hello to an engine that does not match, if it is replaced */
#define STALL_WARN_MS    10000
#define LATE_MS          1000 /* a loop whose tick comes so late did not run meanwhile */
#define REFUSED_LOG_MS   10000
#define OUTPUT_GUESS     256  /* tokens of a generation before any has finished */
#define FAILING_KEPT     0.95 /* a tick: half of it in 0.7 s */

static bool send_buf(struct link *l, enum q_code rc, struct buf *b, const struct q_err *e)
{
    bool sent = false;
    if (rc != Q_OK)
        log_error("link: cannot encode a message: %s", e->message);
    else
        sent = l->send(l->send_ctx, b->data, b->len);
    buf_release(b);
    return sent;
}

static void send_hello(struct link *l)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct msg_hello m = {
        .wire_min = PROTO_WIRE_MIN,
        .wire_max = PROTO_WIRE_MAX,
        .version = {QUIRE_VERSION, strlen(QUIRE_VERSION)},
        .digest = {l->set.digest, sizeof l->set.digest},
        .instance = l->instance,
    };
    if (send_buf(l, msg_hello_encode(&m, &b, &e), &b, &e))
        l->hello_ms = clock_ms(); /* otherwise there is no connection: the next tick tries again */
}

/* Send hello to a connected engine whose heartbeat is late. If the reply says that the engine does
 * not know this frontend (hello.known), it is another engine or has dropped the generations. */
void link_probe(struct link *l)
{
    l->probing = true;
    send_hello(l);
}

static bool send_beat(struct link *l, bool ask)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct msg_heartbeat m = {.step = 0, .ask = ask};
    return send_buf(l, msg_heartbeat_encode(&m, &b, &e), &b, &e);
}

void link_flush_aborts(struct link *l)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct msg_abort m = {.req_ids = {l->aborts, l->n_abort}};
    if (l->n_abort == 0 || l->state == LINK_CONNECTING)
        return;
    if (send_buf(l, msg_abort_encode(&m, &b, &e), &b, &e))
        l->n_abort = 0;
}

void link_add_abort(struct link *l, uint64_t wire_id)
{
    if (q_grow(&l->aborts, &l->aborts_cap, l->n_abort + 1, sizeof *l->aborts, (size_t)1 << 24,
               NULL) == Q_OK)
        l->aborts[l->n_abort++] = wire_id;
}

static uint64_t age_ms(const struct generation *f)
{
    int64_t age = f->arrived_ms ? clock_ms() - f->arrived_ms : 0;
    return age > 0 ? (uint64_t)age : 0;
}

void link_withdraw(struct link *l, struct generation *f)
{
    generation_unname(l, f);
    generation_drop_items(l, f);
}

static void note(struct link *l, enum metric m, double value, double more)
{
    double *all = &l->set.totals->of[m];
    *all = l->set.totals == &l->own ? value : *all + more;
    l->noted.of[m] = value;
    metric_set(m, *all);
}

void link_note(struct link *l, enum metric m, double value)
{
    note(l, m, value, value - l->noted.of[m]);
}

void link_count(struct link *l, enum metric m, double value)
{
    note(l, m, value, value < l->noted.of[m] ? value : value - l->noted.of[m]);
}

void link_note_gone(struct link *l)
{
    static const enum metric gauges[] = {
        METRIC_RUNNING,    METRIC_WAITING,        METRIC_SWAPPED,
        METRIC_KV_USED,    METRIC_KV_TOTAL,       METRIC_SWAP_USED,
        METRIC_SWAP_TOTAL, METRIC_ENGINE_TENANTS, METRIC_ENGINE_DRAINING};
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges && l->set.totals != &l->own; i++)
        link_note(l, gauges[i], 0);
}

void link_note_open(struct link *l)
{
    link_note(l, METRIC_OPEN_SEQUENCES, link_n_open(l));
}

void link_note_prefilled(struct link *l, struct generation *f)
{
    Q_ASSERT(l->n_prefill >= f->n_prefill);
    l->n_prefill -= f->n_prefill;
    f->n_prefill = 0;
}

void link_drop(struct link *l, struct generation *f)
{
    link_withdraw(l, f);
    link_note_prefilled(l, f);
    generation_list_take(f);
    link_note_open(l);
}

void link_fail(struct link *l, struct generation *f, enum q_code code, const char *message,
               uint32_t retry_after_ms)
{
    link_drop(l, f);
    f->calls->on_error(f, code, message, retry_after_ms);
}

static FALLIBLE encode_submit(const struct link *l, const struct generation *f, struct buf *out,
                              struct q_err *e)
{
    struct msg_submit m = {
        .req_id = f->wire_id,
        .prompt = {f->prompt, f->n_prompt},
        .emitted = {f->emitted.ids, f->emitted.n},
        .priority = (uint32_t)f->priority,
        .tenant = f->tenant,
        .weight = f->weight,
        .age_ms = age_ms(f),
        .cache_salt = {f->cache_salt, f->n_cache_salt},
        .no_prefix_cache = f->no_prefix_cache,
        .n_shared = f->n_shared,
        .adapter = {f->adapter, f->adapter ? strlen(f->adapter) : 0},
    };
    sample_params_to_submit(&m, &f->params);
    m.max_tokens_fits = f->fits_max_tokens;
    m.count_only = f->counts_only;
    m.stream_id = (struct proto_bytes){f->stream_id, f->stream_id ? STREAM_ID_BYTES : 0};
    m.n_resume = f->n_resume;
    m.choice = f->choice;
    m.alone = l->suspecting;
    m.item_positions = (struct proto_u32s){f->item_positions, f->n_item_position};
    link_put_items(l, &m, f);
    if (f->emitted.n)
        m.n_prompt_logprob = 0; /* all prompt rows have arrived before the first token */
    return msg_submit_encode(&m, out, e);
}

static FALLIBLE send_submit(struct link *l, struct generation *f, struct q_err *e)
{
    struct buf b = BUF_INIT;
    enum q_code rc = encode_submit(l, f, &b, e);
    if (!rc && !l->send(l->send_ctx, b.data, b.len))
        rc = q_fail(e, Q_UNAVAILABLE, "there is no connection");
    buf_release(&b);
    return rc;
}

/* Errors: Q_UNAVAILABLE (try again later); any other: the request cannot be sent at all. */
static FALLIBLE submit(struct link *l, struct generation *f, struct q_err *e)
{
    if (!generation_name(l, f))
        return q_fail(e, Q_UNAVAILABLE, "too many open sequences");
    f->n_prompt_skip = f->n_prompt_row;
    if (f->calls->on_submit)
        f->calls->on_submit(f);
    enum q_code rc = send_submit(l, f, e);
    if (rc) {
        generation_unname(l, f);
        return rc;
    }
    generation_list_take(f);
    generation_list_add(&l->running, f);
    link_follow_items(l, f);
    return Q_OK;
}

/* Its own time, and that of its request, of which more are submitted each time. */
static bool is_due(const struct generation *f, int64_t now)
{
    struct link_request *r = f->request;
    if (f->not_before_ms > now || (r && r->not_before_ms > now))
        return false;
    if (r && r->not_before_ms) {
        r->not_before_ms = 0;
        r->window *= 2;
    }
    return !r || !r->window || r->n_submitted < r->window;
}

/* Submit as many generations as the credit allows, first come first served. One that cannot be sent
 * ends with its error; `opening` (may be NULL) is not told, it leaves the list.
 * Errors: those of submit of `opening`. */
static FALLIBLE pump_opening(struct link *l, const struct generation *opening, struct q_err *e)
{
    const int64_t now = clock_ms();
    struct generation *f = l->state == LINK_UP ? l->waiting.first : NULL;
    struct generation *suspect = f && l->suspecting ? link_suspect_next(l) : NULL;
    if (l->suspecting) {
        f = suspect;
        link_flush_aborts(l); /* of the one before: the engine does not refuse this one for it */
    }
    while (f && l->running.n < l->engine.credit) {
        struct q_err why = Q_ERR_INIT;
        struct generation *next = f->next;
        const bool is_ready = is_due(f, now) && link_begin_items(l, f);
        const enum q_code rc = is_ready ? submit(l, f, &why) : Q_OK;
        if (rc == Q_UNAVAILABLE)
            return Q_OK;
        if (rc && f == opening) {
            link_drop(l, f);
            return q_fail(e, rc, "%s", why.message);
        }
        if (rc) {
            link_fail(l, f, rc, why.message, 0);
            next = l->waiting.first; /* the callback may have closed any */
        }
        f = suspect ? NULL : next;
    }
    return Q_OK;
}

void link_pump(struct link *l)
{
    struct q_err none = Q_ERR_INIT;
    const enum q_code rc = pump_opening(l, NULL, &none);
    Q_ASSERT(!rc);
}

/* Put a generation back at the head of the queue, with its tokens so far. */
void link_take_back(struct link *l, struct generation *f)
{
    link_withdraw(l, f);
    f->items_inline = f->has_turn = false;
    f->trial_ms = 0;
    generation_list_take(f);
    f->since_ms = clock_ms();
    generation_list_push(&l->waiting, f);
}

void link_move(struct link *l, struct generation *f, struct link *to, uint32_t n_prefill)
{
    Q_ASSERT(l != to && f->link == l && f->list);
    if (f->wire_id)
        link_add_abort(l, f->wire_id);
    link_drop(l, f);
    f->is_moved = f->is_moved || f->was_lost;
    f->items_inline = f->has_turn = f->was_lost = false;
    f->trial_ms = f->not_before_ms = 0;
    f->n_lost = f->n_since_lost = 0;
    f->link = to;
    f->n_prefill = n_prefill;
    to->n_prefill += n_prefill;
    if (f->taken || f->emitted.n)
        generation_list_push(&to->waiting, f);
    else
        generation_list_add(&to->waiting, f);
    link_note_open(to);
}

void link_note_state(struct link *l)
{
    link_note(l, METRIC_ENGINE_UP, l->state == LINK_UP || l->state == LINK_DRAINING);
    link_note(l, METRIC_ENGINE_LOADING, l->state == LINK_CONNECTING && l->loading);
    link_note(l, METRIC_ENGINE_STALLED, l->state == LINK_CONNECTING && l->silent_since_ms != 0);
}

const char *link_code(const struct link *l)
{
    switch (l->state) {
    case LINK_UP:
        return "";
    case LINK_REFUSED:
        return "engine_mismatch";
    case LINK_DRAINING:
        return "engine_draining";
    default:
        return l->refused           ? "engine_keys"
               : l->loading         ? "engine_loading"
               : l->silent_since_ms ? "engine_stalled"
                                    : "engine_unreachable";
    }
}

void link_set_state(struct link *l, enum link_state state, const char *reason)
{
    bool changed = l->state != state;
    if (changed && state == LINK_CONNECTING)
        l->away_since_ms = clock_ms();
    l->state = state;
    l->loading = false;
    l->refused = NULL;
    snprintf(l->reason, sizeof l->reason, "%s", reason);
    link_note_state(l);
    if (changed && l->set.on_change)
        l->set.on_change(l->set.ctx);
}

void link_refused(struct link *l, const char *why)
{
    if (l->state != LINK_CONNECTING)
        return;
    l->refused = why;
    l->unheard_since_ms = 0; /* it is told of here */
    snprintf(l->reason, sizeof l->reason, "the connection to %s is refused: %s", l->set.address,
             why);
    if (log_ratelimit(&l->refused_log_ms, &l->n_refused_skipped, REFUSED_LOG_MS))
        log_error("link: %s", l->reason);
}

void link_go_down(struct link *l, const char *reason)
{
    if (l->running.n)
        log_warning("link%s: %s: %u open requests wait for a reconnect", l->set.name, reason,
                    l->running.n);
    else if (l->state != LINK_CONNECTING)
        log_warning("link%s: %s", l->set.name, reason);
    link_suspect_lost(l);
    link_note_gone(l);
    for (struct generation *f = l->waiting.first; f; f = f->next)
        f->since_ms = clock_ms(); /* until now they waited for room */
    while (l->running.last && l->set.no_replay) {
        link_add_abort(l, l->running.last->wire_id);
        link_fail(l, l->running.last, Q_UNAVAILABLE,
                  "the engine was lost while it had this request (--no-replay); "
                  "send the request again",
                  0);
    }
    while (l->running.last) { /* last first, so that the order is kept */
        metric_add(METRIC_RESUBMITTED, 1);
        /* the same engine may reconnect and still have the generation */
        link_add_abort(l, l->running.last->wire_id);
        l->running.last->taken = true;
        link_take_back(l, l->running.last);
    }
    link_set_state(l, LINK_CONNECTING, reason);
}

static void expire(struct link *l, int64_t now)
{
    char message[LINK_REASON_MAX + 32];
    const bool is_hopeless =
        l->state == LINK_REFUSED && !(l->set.has_others && l->set.has_others(l->set.ctx));
    for (struct generation *f = l->waiting.first, *next; f; f = next) {
        next = f->next;
        if (is_hopeless || now - f->since_ms > l->set.engine_timeout_ms) {
            snprintf(message, sizeof message, "the engine is not available: %s", l->reason);
            link_fail(l, f, Q_UNAVAILABLE, message, 1000);
            next = l->waiting.first; /* the callback may have closed other generations */
        }
    }
}

/* While this loop did not run (a frozen container, SIGSTOP) it has not listened to the engine: that
 * time is no silence of the engine's. */
static void note_tick(struct link *l, int64_t now)
{
    const int64_t gap_ms = clock_gap_ms(&l->tick_ms, now, LATE_MS);
    l->beat_ms = clock_skip_gap(l->beat_ms, gap_ms, now);
    l->step_ms = clock_skip_gap(l->step_ms, gap_ms, now);
    l->silent_since_ms = clock_skip_gap(l->silent_since_ms, gap_ms, now);
}

void link_tick(struct link *l)
{
    Q_ASSERT(l->send);
    int64_t now = clock_ms();
    note_tick(l, now);
    l->n_failing *= FAILING_KEPT;
    int64_t silence_ms = (int64_t)l->heartbeat_ms * SILENCE_BEATS;
    if (silence_ms < SILENCE_MIN_MS)
        silence_ms = SILENCE_MIN_MS;
    bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    if (up && now - l->beat_ms > silence_ms) {
        link_go_down(l, "the engine does not respond");
        l->silent_since_ms = l->beat_ms;
        link_note_state(l);
        up = false;
    }
    if (up && now - l->step_ms > STALL_WARN_MS) {
        log_warning("link%s: the engine is stalled: step %" PRIu64 " has not completed",
                    l->set.name, l->step);
        l->step_ms = now;
    }
    if (up && now - l->sent_beat_ms >=
                  (l->heartbeat_ms < BEAT_EVERY_MS ? l->heartbeat_ms : BEAT_EVERY_MS)) {
        l->sent_beat_ms = now;
        if (!send_beat(l, false)) {
            link_go_down(l, "the connection to the engine is lost");
            up = false;
        }
    }
    if (up && now - l->beat_ms > (int64_t)l->heartbeat_ms * 3 / 2 &&
        now - l->hello_ms >= HELLO_EVERY_MS)
        link_probe(l);
    if (!up && now - l->hello_ms >= (l->state == LINK_REFUSED ? REFUSED_EVERY_MS : HELLO_EVERY_MS))
        send_hello(l);
    if (l->unheard_since_ms && now - l->unheard_since_ms > SILENCE_MIN_MS) {
        log_warning("link: no engine has answered at %s yet: retrying", l->set.address);
        l->unheard_since_ms = 0;
    }
    if (l->state != LINK_UP)
        expire(l, now);
    l->is_stuck = false;
    link_flush_aborts(l);
    link_pump(l);
    Q_CHECK(link_check(l));
}

void link_flush(struct link *l)
{
    link_flush_aborts(l);
}

FALLIBLE link_init(struct link *l, const struct link_config *c, struct q_err *e)
{
    Q_ASSERT(c->address && *c->address);
    memset(l, 0, sizeof *l);
    l->set = *c;
    l->set.name = c->name ? c->name : "";
    l->set.totals = c->totals ? c->totals : &l->own;
    l->heartbeat_ms = 1000;
    l->unheard_since_ms = l->away_since_ms = clock_ms();
    l->has_memory = !strncmp(c->address, "ipc://", 6);
    if (l->has_memory)
        item_memory_sweep();
    l->arena = (struct arena)ARENA_INIT(PROTO_FRAME_MAX);
    l->mean_output = OUTPUT_GUESS;
    snprintf(l->reason, sizeof l->reason, "waiting for the engine at %s", c->address);
    if (RAND_bytes((unsigned char *)&l->instance, sizeof l->instance) != 1)
        return q_fail(e, Q_INTERNAL, "link: no random numbers");
    return Q_OK;
}

void link_release(struct link *l)
{
    for (struct generation *f = l->waiting.first; f; f = f->next)
        generation_drop_items(l, f);
    buf_release(&l->engine.adapters);
    arena_release(&l->arena);
    q_free(l->slots);
    q_free(l->aborts);
    l->slots = NULL;
    l->aborts = NULL;
}

void link_leave(struct link *l)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct msg_drain m = {.reason = {"the frontend is shutting down", 18}};
    if (l->state == LINK_UP || l->state == LINK_DRAINING)
        send_buf(l, msg_drain_encode(&m, &b, &e), &b, &e);
}

bool link_hangs(const struct link *l)
{
    int64_t limit_ms = (int64_t)l->heartbeat_ms * HANG_BEATS;
    return l->silent_since_ms &&
           clock_ms() - l->silent_since_ms > (limit_ms > HANG_MIN_MS ? limit_ms : HANG_MIN_MS);
}

enum link_state link_state(const struct link *l)
{
    return l->state;
}

const char *link_reason(const struct link *l)
{
    return l->reason;
}

const struct link_engine *link_engine(const struct link *l)
{
    return &l->engine;
}

uint32_t link_n_open(const struct link *l)
{
    return l->waiting.n + l->running.n;
}

bool link_is_away(const struct link *l)
{
    return l->state == LINK_CONNECTING &&
           clock_ms() - l->away_since_ms > (int64_t)l->set.engine_timeout_ms;
}

FALLIBLE link_open(struct link *l, struct generation *f, struct q_err *e)
{
    Q_ASSERT(!f->list && f->calls && f->calls->on_tokens && f->calls->on_error);
    Q_ASSERT(f->prompt && f->n_prompt && (f->begun || !f->n_begun));
    Q_ASSERT(f->n_cache_salt <= sizeof f->cache_salt && f->n_shared <= f->n_prompt);
    if (l->ended)
        return q_fail(e, Q_UNAVAILABLE, "%s", l->ended);
    if (link_is_away(l))
        return q_fail(e, Q_UNAVAILABLE, "the engine is not available: %s", l->reason);
    if (link_n_open(l) >= LINK_FLOWS_MAX)
        return q_fail(e, Q_NO_SPACE, "too many open sequences: the limit is %u; retry later",
                      LINK_FLOWS_MAX);
    if (link_check_items(l, f, e))
        return e->code;
    f->link = l;
    f->since_ms = clock_ms();
    f->emitted = (struct token_list)TOKEN_LIST_INIT;
    for (size_t i = 0; i < f->n_begun; i++) {
        enum q_code rc = token_list_add(&f->emitted, f->begun[i], e);
        if (rc != Q_OK) {
            token_list_release(&f->emitted);
            return rc;
        }
    }
    l->n_prefill += f->n_prefill;
    generation_list_add(&l->waiting, f);
    const enum q_code rc = pump_opening(l, f, e);
    if (rc)
        token_list_release(&f->emitted);
    link_note_open(l);
    Q_CHECK(link_check(l));
    return rc;
}

void link_close(struct link *l, struct generation *f)
{
    Q_ASSERT(!f->list || f->list == &l->waiting || f->list == &l->running);
    if (f->list) {
        if (f->wire_id)
            link_add_abort(l, f->wire_id);
        link_drop(l, f);
    }
    token_list_release(&f->emitted);
}

static void end_list(struct link *l, const struct generation_list *list)
{
    while (list->first) { /* on_error may close others */
        struct generation *f = list->first;
        if (f->wire_id)
            link_add_abort(l, f->wire_id);
        link_fail(l, f, Q_UNAVAILABLE, l->ended, 0);
    }
}

void link_end(struct link *l, const char *message)
{
    l->ended = message;
    end_list(l, &l->running);
    end_list(l, &l->waiting);
    Q_CHECK(link_check(l));
}

/* Send the message in `b` to a connected engine. */
static FALLIBLE send_now(struct link *l, enum q_code rc, struct buf *b, struct q_err *e)
{
    bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    if (!up)
        buf_release(b);
    if (up && send_buf(l, rc, b, e))
        return Q_OK;
    return q_fail(e, Q_UNAVAILABLE, "the engine is not available: %s",
                  up ? "it does not accept messages" : l->reason);
}

bool link_ask(struct link *l)
{
    return (l->state == LINK_UP || l->state == LINK_DRAINING) && send_beat(l, true);
}

FALLIBLE link_reset_prefix_cache(struct link *l, const char *reason, struct q_err *e)
{
    struct buf b = BUF_INIT;
    const struct msg_reset_prefix_cache m = {.reason = {reason, strlen(reason)}};
    return send_now(l, msg_reset_prefix_cache_encode(&m, &b, e), &b, e);
}

FALLIBLE link_control(struct link *l, const struct msg_control *m, struct q_err *e)
{
    struct buf b = BUF_INIT;
    return send_now(l, msg_control_encode(m, &b, e), &b, e);
}

FALLIBLE link_keep_stream(struct link *l, const struct msg_keep_stream *m, struct q_err *e)
{
    struct buf b = BUF_INIT;
    return send_now(l, msg_keep_stream_encode(m, &b, e), &b, e);
}

FALLIBLE link_resume_stream(struct link *l, const struct msg_resume_stream *m, struct q_err *e)
{
    struct buf b = BUF_INIT;
    return send_now(l, msg_resume_stream_encode(m, &b, e), &b, e);
}

FALLIBLE link_command(struct link *l, const struct msg_command *m, struct q_err *e)
{
    struct buf b = BUF_INIT;
    return send_now(l, msg_command_encode(m, &b, e), &b, e);
}
