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
#include <unistd.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/link/link_internal.h"
#include "proto/item_types.h"

#define HELLO_EVERY_MS   200 /* while no engine answers */
#define SILENCE_BEATS    4   /* missed heartbeats after which the engine counts as lost */
#define SILENCE_MIN_MS   3000
#define HANG_BEATS       10 /* time without an answer after which the engine hangs */
#define HANG_MIN_MS      10000
#define BEAT_EVERY_MS    250  /* maximum interval of our heartbeats; one that fails shows a loss */
#define REFUSED_EVERY_MS 2000 /* hello to an engine that does not match, if it is replaced */
#define FULL_RETRY_MS    200  /* interval of resubmission to a full engine that gave no time */
#define STALL_WARN_MS    10000
#define REFUSED_LOG_MS   10000

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
static void probe(struct link *l)
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

static void flush_aborts(struct link *l)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct msg_abort m = {.req_ids = {l->aborts, l->n_abort}};
    if (l->n_abort == 0 || l->state == LINK_CONNECTING)
        return;
    if (send_buf(l, msg_abort_encode(&m, &b, &e), &b, &e))
        l->n_abort = 0;
}

static void add_abort(struct link *l, uint64_t wire_id)
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

static void withdraw(struct link *l, struct generation *f)
{
    generation_unname(l, f);
    generation_drop_items(l, f);
}

static void fail_generation(struct link *l, struct generation *f, enum q_code code,
                            const char *message, uint32_t retry_after_ms)
{
    withdraw(l, f);
    generation_list_take(f);
    metric_set(METRIC_OPEN_SEQUENCES, l->waiting.n + l->running.n);
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

/* Submit as many generations as the credit allows, first come first served. One that cannot be sent
 * ends with its error; `opening` (may be NULL) is not told, it leaves the list.
 * Errors: those of submit of `opening`. */
static FALLIBLE pump_opening(struct link *l, const struct generation *opening, struct q_err *e)
{
    const int64_t now = clock_ms();
    struct generation *f = l->state == LINK_UP ? l->waiting.first : NULL;
    struct generation *suspect = f && l->suspecting ? link_suspect_next(l) : NULL;
    if (l->suspecting)
        f = suspect;
    while (f && l->running.n < l->engine.credit) {
        struct q_err why = Q_ERR_INIT;
        struct generation *next = f->next;
        const bool is_ready = f->not_before_ms <= now && link_begin_items(l, f);
        const enum q_code rc = is_ready ? submit(l, f, &why) : Q_OK;
        if (rc == Q_UNAVAILABLE)
            return Q_OK;
        if (rc && f == opening) {
            generation_drop_items(l, f);
            generation_list_take(f);
            return q_fail(e, rc, "%s", why.message);
        }
        if (rc) {
            fail_generation(l, f, rc, why.message, 0);
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
static void take_back(struct link *l, struct generation *f)
{
    withdraw(l, f);
    f->items_inline = f->has_turn = false;
    generation_list_take(f);
    f->since_ms = clock_ms();
    generation_list_push(&l->waiting, f);
}

static void note_state(const struct link *l)
{
    const bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    metric_set(METRIC_ENGINE_UP, up);
    metric_set(METRIC_ENGINE_LOADING, l->state == LINK_CONNECTING && l->loading);
    metric_set(METRIC_ENGINE_STALLED, l->state == LINK_CONNECTING && l->silent_since_ms != 0);
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

static void set_state(struct link *l, enum link_state state, const char *reason)
{
    bool changed = l->state != state;
    if (changed && state == LINK_CONNECTING)
        l->away_since_ms = clock_ms();
    l->state = state;
    l->loading = false;
    l->refused = NULL;
    snprintf(l->reason, sizeof l->reason, "%s", reason);
    note_state(l);
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

static void go_down(struct link *l, const char *reason)
{
    if (l->running.n)
        log_warning("link: %s: %u open requests wait for a reconnect", reason, l->running.n);
    else if (l->state != LINK_CONNECTING)
        log_warning("link: %s", reason);
    link_suspect_lost(l);
    while (l->running.last && l->set.no_replay) {
        add_abort(l, l->running.last->wire_id);
        fail_generation(l, l->running.last, Q_UNAVAILABLE,
                        "the engine was lost while it had this request (--no-replay); "
                        "send the request again",
                        0);
    }
    while (l->running.last) { /* last first, so that the order is kept */
        metric_add(METRIC_RESUBMITTED, 1);
        /* the same engine may reconnect and still have the generation */
        add_abort(l, l->running.last->wire_id);
        l->running.last->taken = true;
        take_back(l, l->running.last);
    }
    set_state(l, LINK_CONNECTING, reason);
}

static void copy_str(char *out, size_t size, struct proto_str s)
{
    size_t n = s.n < size - 1 ? s.n : size - 1;
    if (n)
        memcpy(out, s.data, n);
    out[n] = 0;
}

/* Before generations go on with this engine: end the one that killed the engines before, and, if it
 * has other weights, those whose tokens the other ones gave. */
static void end_unfit(struct link *l, const struct msg_hello *m)
{
    char message[LINK_REASON_MAX], now[sizeof l->engine.fingerprint];
    const bool is_same = m->instance == l->engine_instance;
    struct generation *culprit = link_suspect_judge(l, m);
    copy_str(now, sizeof now, m->fingerprint);
    if (culprit) {
        int n;
        const char *cause = link_suspect_cause(m->death, &n);
        snprintf(message, sizeof message,
                 "the engine crashed %u times while it computed this request; the last one %.*s",
                 culprit->n_lost, n ? n : 5, n ? cause : "ended");
        log_error("link: a request failed: %s", message);
        fail_generation(l, culprit, Q_INTERNAL, message, 0);
    }
    if (!l->engine_instance || is_same || !strcmp(now, l->engine.fingerprint))
        return;
    snprintf(message, sizeof message,
             "the engine was restarted with other weights or settings (%s, before %s): the answer "
             "cannot go on; send the request again",
             now, l->engine.fingerprint);
    for (struct generation *f = l->waiting.first, *next; f; f = next) {
        next = f->next;
        if (f->emitted.n == f->n_begun && !f->n_prompt_row)
            continue;
        log_error("link: a request failed: %s", message);
        fail_generation(l, f, Q_MISMATCH, message, 0);
        next = l->waiting.first; /* the callback may have closed any */
    }
}

static void take_adapters(struct link_engine *g, const struct proto_bytes *list)
{
    buf_reset(&g->adapters);
    buf_add(&g->adapters, list->data, list->n);
}

static void on_hello(struct link *l, const struct msg_hello *m)
{
    char reason[LINK_REASON_MAX];
    struct q_err e = Q_ERR_INIT;
    struct link_engine *g = &l->engine;
    bool digest_differs = m->digest.n != sizeof l->set.digest ||
                          memcmp(m->digest.data, l->set.digest, m->digest.n) != 0;
    bool wire_differs = m->wire_min > PROTO_WIRE_MAX || m->wire_max < PROTO_WIRE_MIN;
    bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    if (up && m->instance == l->engine_instance && (!l->probing || m->known)) {
        l->probing = false; /* the reply to a repeated hello, or a late one */
        return;
    }
    if (up) /* the engine was replaced, or has dropped this frontend and its generations */
        go_down(l, m->instance == l->engine_instance ? "the engine reconnected"
                                                     : "the engine was restarted");
    l->probing = false;
    copy_str(g->model, sizeof g->model, m->model);
    copy_str(g->version, sizeof g->version, m->version);
    if (digest_differs || wire_differs) {
        if (wire_differs)
            snprintf(reason, sizeof reason,
                     "incompatible versions: the engine supports wire versions %u to %u, this "
                     "frontend %u to %u",
                     m->wire_min, m->wire_max, PROTO_WIRE_MIN, PROTO_WIRE_MAX);
        else
            snprintf(reason, sizeof reason,
                     "the engine's model differs from this frontend's (config.json or tokenizer); "
                     "the engine's model is %s",
                     g->model);
        if (l->state != LINK_REFUSED)
            log_error("link: %s", reason);
        set_state(l, LINK_REFUSED, reason);
        return;
    }
    end_unfit(l, m);
    copy_str(g->fingerprint, sizeof g->fingerprint, m->fingerprint);
    take_adapters(g, &m->adapters);
    g->vocab_size = m->vocab_size;
    g->max_model_len = m->max_model_len;
    g->max_num_seqs = m->max_num_seqs;
    g->credit = m->credit;
    g->item_credit = m->item_credit;
    if (item_types_read(&g->item_types, m, &e))
        log_warning("link: content parts of the model's own types are not accepted: %s", e.message);
    g->n_eos = m->eos_ids.n < 16 ? (uint32_t)m->eos_ids.n : 16;
    if (g->n_eos)
        memcpy(g->eos_ids, m->eos_ids.data, g->n_eos * sizeof(uint32_t));
    l->engine_instance = g->instance = m->instance;
    l->engine_start = m->n_start;
    l->heartbeat_ms = m->heartbeat_ms ? m->heartbeat_ms : 1000;
    l->has_trials = m->has_trials;
    l->beat_ms = l->step_ms = clock_ms();
    l->silent_since_ms = l->unheard_since_ms = 0;
    metric_add(METRIC_RECONNECTS, 1);
    log_info("link: connected to engine %s: model %s, at most %u tokens per request, %u running "
             "sequences",
             g->version, g->model, g->max_model_len, g->max_num_seqs);
    set_state(l, LINK_UP, "");
    flush_aborts(l);
    link_pump(l);
}

static void on_error_message(struct link *l, const struct msg_error *m)
{
    char code[64], message[Q_MESSAGE_MAX];
    enum q_code found = Q_INTERNAL;
    copy_str(code, sizeof code, m->code);
    copy_str(message, sizeof message, m->message);
    for (int c = 1; c < Q_CODE_COUNT; c++)
        if (!strcmp(code, q_code_name((enum q_code)c)))
            found = (enum q_code)c;
    if (m->req_id == 0) {
        l->unheard_since_ms = l->silent_since_ms = 0; /* it answers */
        if (found == Q_UNAVAILABLE && l->state == LINK_CONNECTING) {
            snprintf(l->reason, sizeof l->reason, "the engine is %s", message); /* "loading 40 %" */
            l->loading = true;
            l->refused = NULL;
            note_state(l);
            return;
        }
        if (found != Q_MISMATCH || l->state != LINK_REFUSED)
            log_error("link: the engine reports an error: %s: %s", code, message);
        if (found == Q_MISMATCH) {
            if (l->running.n)
                go_down(l, message);
            set_state(l, LINK_REFUSED, message);
        }
        return;
    }
    struct generation *f = generation_by_wire_id(l, m->req_id);
    if (!f)
        return;
    /* A generation with output is not rejected because of a full queue or a pause: its client has
     * received a part of the answer. Nor is one that the engine accepted before it was lost: all of
     * these are submitted again at once, and the queue may be too short for them. */
    bool promised = f->emitted.n || f->taken;
    if ((found == Q_UNAVAILABLE && (promised || !l->engine.refusing)) ||
        (found == Q_NO_SPACE && promised)) {
        take_back(l, f);
        f->has_turn = m->alone;
        if (m->alone) {
            link_pump(l);
            return;
        }
        f->not_before_ms = clock_ms() + (m->retry_after_ms ? m->retry_after_ms : FULL_RETRY_MS);
        if (found == Q_UNAVAILABLE && clock_ms() - l->hello_ms >= FULL_RETRY_MS)
            probe(l); /* the engine may not know this frontend any more */
        return;
    }
    fail_generation(l, f, found, message, m->retry_after_ms);
    link_pump(l);
}

static void show_speculation(const struct msg_heartbeat *m)
{
    static const enum metric places[] = {METRIC_ACCEPTED_0, METRIC_ACCEPTED_1, METRIC_ACCEPTED_2,
                                         METRIC_ACCEPTED_3, METRIC_ACCEPTED_4, METRIC_ACCEPTED_5,
                                         METRIC_ACCEPTED_6, METRIC_ACCEPTED_7};
    double n_accepted = 0;
    for (size_t i = 0; i < m->accepted_at.n; i++) {
        n_accepted += (double)m->accepted_at.data[i];
        if (i < sizeof places / sizeof *places)
            metric_set(places[i], (double)m->accepted_at.data[i]);
    }
    metric_set(METRIC_DRAFTS, (double)m->n_draft);
    metric_set(METRIC_DRAFT_TOKENS, (double)m->n_draft_token);
    metric_set(METRIC_ACCEPTED, n_accepted);
    metric_set(METRIC_FORCED_TOKENS, (double)m->n_forced_token);
    metric_set(METRIC_FORCED_ACCEPTED, (double)m->n_forced_accepted);
}

static void on_heartbeat(struct link *l, const struct msg_heartbeat *m)
{
    if (m->step != l->step || m->n_running == 0 || m->pausing || m->sleep_level)
        l->step_ms = clock_ms();
    l->step = m->step;
    l->engine.sleep_level = m->sleep_level;
    l->engine.paused = m->paused;
    l->engine.pausing = m->pausing || m->paused;
    l->engine.refusing = m->refusing;
    if (m->has_adapters)
        take_adapters(&l->engine, &m->adapters);
    if (m->fingerprint.n)
        copy_str(l->engine.fingerprint, sizeof l->engine.fingerprint, m->fingerprint);
    metric_set(METRIC_RUNNING, m->n_running);
    metric_set(METRIC_WAITING, m->n_waiting);
    metric_set(METRIC_SWAPPED, m->n_swapped);
    metric_set(METRIC_KV_USED, m->kv_blocks_used);
    metric_set(METRIC_KV_TOTAL, m->kv_blocks_total);
    metric_set(METRIC_KV_USAGE,
               m->kv_blocks_total ? (double)m->kv_blocks_used / m->kv_blocks_total : 0);
    metric_set(METRIC_STEP_GAPS, (double)m->n_gap);
    metric_set(METRIC_STEP_GAP_SECONDS, (double)m->gap_us * 1e-6);
    metric_set(METRIC_SWAP_USED, m->swap_blocks_used);
    metric_set(METRIC_SWAP_TOTAL, m->swap_blocks_total);
    metric_set(METRIC_SWAP_USAGE,
               m->swap_blocks_total ? (double)m->swap_blocks_used / m->swap_blocks_total : 0);
    metric_set(METRIC_ENGINE_STEP, (double)m->step);
    metric_set(METRIC_ENGINE_DRAINING, m->draining);
    metric_set(METRIC_ENGINE_BAD_FRAMES, (double)m->n_bad_frame);
    metric_set(METRIC_ENGINE_ABORTED, (double)m->n_aborted);
    metric_set(METRIC_ENGINE_TENANTS, m->n_tenant);
    metric_set(METRIC_TIMEOUTS, (double)m->n_timeout);
    metric_set(METRIC_PUSHED_OUT, (double)m->n_pushed_out);
    metric_set(METRIC_PREEMPTIONS, (double)m->n_preemption);
    metric_set(METRIC_PREEMPTIONS_SWAP, (double)m->n_swap_out);
    metric_set(METRIC_PREEMPTIONS_RECOMPUTE, (double)m->n_preemption - (double)m->n_swap_out);
    metric_set(METRIC_PREFIX_QUERIES, (double)m->prefix_queries);
    metric_set(METRIC_PREFIX_HITS, (double)m->prefix_hits);
    metric_set(METRIC_ENGINE_PROMPT, (double)m->prompt_tokens);
    metric_set(METRIC_ENGINE_GENERATION, (double)m->generation_tokens);
    metric_set_buckets(METRIC_ITERATION, m->iteration_tokens.data, (uint32_t)m->iteration_tokens.n,
                       (double)(m->prompt_tokens + m->generation_tokens));
    show_speculation(m);
    if (m->draining && l->state == LINK_UP)
        set_state(l, LINK_DRAINING, "the engine is shutting down");
    else if (!m->draining && l->state == LINK_DRAINING)
        set_state(l, LINK_UP, "");
    if (l->set.on_heartbeat)
        l->set.on_heartbeat(l->set.ctx);
}

/* The tokens begin behind the end of the generation's output: some are lost. Submit the generation
 * again. */
static void on_gap(struct link *l, struct generation *f, uint32_t seq)
{
    log_error("link: tokens were lost (expected token %zu, got %u): submitting the request again",
              f->emitted.n, seq);
    metric_add(METRIC_TOKENS_GAP, 1);
    metric_add(METRIC_RESUBMITTED, 1);
    add_abort(l, f->wire_id);
    take_back(l, f);
}

static void skip_rows(struct logprob_rows *r, uint32_t n)
{
    if (n > r->n_row)
        n = r->n_row;
    if (r->n == 0 || n == 0)
        return;
    r->n_row -= n;
    r->ids += (size_t)n * r->n;
    r->logprobs += (size_t)n * r->n;
    r->ranks += n;
}

void link_deliver(struct link *l, struct generation *f, uint32_t seq, struct link_tokens *t)
{
    Q_ASSERT(f->list == &l->running);
    if (seq > f->emitted.n) {
        on_gap(l, f, seq);
        return;
    }
    uint32_t n_old = (uint32_t)(f->emitted.n - seq);
    if (n_old > t->n)
        n_old = t->n;
    if (n_old) {
        metric_add(METRIC_TOKENS_DUPLICATE, n_old);
        t->ids += n_old;
        t->n -= n_old;
        skip_rows(&t->logprobs, n_old);
    }
    uint32_t n_again = f->n_prompt_skip < t->prompt.n_row ? f->n_prompt_skip : t->prompt.n_row;
    skip_rows(&t->prompt, n_again);
    f->n_prompt_skip -= n_again;
    f->n_prompt_row += t->prompt.n_row;
    for (uint32_t i = 0; i < t->n; i++) {
        struct q_err e = Q_ERR_INIT;
        if (token_list_add(&f->emitted, t->ids[i], &e) != Q_OK) {
            add_abort(l, f->wire_id);
            fail_generation(l, f, e.code, e.message, 0);
            return;
        }
    }
    if (t->finish != FINISH_NONE) {
        withdraw(l, f);
        generation_list_take(f);
        metric_set(METRIC_OPEN_SEQUENCES, l->waiting.n + l->running.n);
    }
    if (link_suspect_passed(f, t->n) && f->list) { /* the next suspect has its turn, alone */
        add_abort(l, f->wire_id);
        take_back(l, f);
    }
    if (t->n || t->prompt.n_row || t->finish != FINISH_NONE)
        f->calls->on_tokens(f, t);
}

static FALLIBLE on_expanded(struct link *l, const struct msg_expanded *m, struct q_err *e)
{
    struct generation *f = generation_by_wire_id(l, m->req_id);
    uint64_t n_all = f ? f->n_prompt : 0;
    if (m->positions.n != m->n_token.n)
        return q_fail(e, Q_CORRUPT, "expanded: %zu positions with %zu numbers", m->positions.n,
                      m->n_token.n);
    for (size_t i = 0; i < m->positions.n && f; i++) {
        const uint32_t at = m->positions.data[i], n = m->n_token.data[i];
        n_all += n - 1ull;
        if (n == 0 || at >= f->n_prompt || (i && at <= m->positions.data[i - 1]) ||
            n_all > (f->counts_only ? PROTO_ARRAY_MAX : l->engine.max_model_len))
            return q_fail(e, Q_CORRUPT, "expanded: entry %zu is out of range", i);
    }
    if (f && f->calls->on_expanded)
        f->calls->on_expanded(f, m->positions.data, m->n_token.data, m->positions.n);
    return Q_OK;
}

static void drop_frame(struct link *l, const char *why)
{
    metric_add(METRIC_FRAMES_DROPPED, 1);
    if (!log_ratelimit(&l->drop_log_ms, &l->n_drop_unlogged, 1000))
        return;
    log_warning("link: frame dropped: %s (and %" PRIu64 " before it)", why, l->n_drop_unlogged);
    l->n_drop_unlogged = 0;
}

#define DECODE(name) ((rc = msg_##name##_decode(&m.name, frame, n, &l->arena, &e)) == Q_OK)
void link_receive(struct link *l, const void *frame, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    union {
        struct msg_hello hello;
        struct msg_output output;
        struct msg_error error;
        struct msg_heartbeat heartbeat;
        struct msg_drain drain;
        struct msg_command_done command_done;
        struct msg_expanded expanded;
        struct msg_items_received items_received;
        struct msg_stream_resumed stream_resumed;
    } m;
    uint32_t tag = proto_peek(frame, n);
    memset(&m, 0, sizeof m);
    l->beat_ms = clock_ms();
    if (tag == MSG_hello) {
        if (DECODE(hello))
            on_hello(l, &m.hello);
    } else if (tag == MSG_error) {
        if (DECODE(error))
            on_error_message(l, &m.error);
    } else if (l->state == LINK_CONNECTING || l->state == LINK_REFUSED) {
        /* a late message of an engine that was replaced */
    } else if (tag == MSG_output) {
        if (DECODE(output))
            rc = link_output(l, &m.output, &e);
        link_pump(l);
    } else if (tag == MSG_expanded) {
        if (DECODE(expanded))
            rc = on_expanded(l, &m.expanded, &e);
    } else if (tag == MSG_items_received) {
        if (DECODE(items_received))
            rc = link_items_received(l, &m.items_received, &e);
    } else if (tag == MSG_heartbeat) {
        if (DECODE(heartbeat))
            on_heartbeat(l, &m.heartbeat);
    } else if (tag == MSG_drain) {
        if (DECODE(drain))
            set_state(l, LINK_DRAINING, "the engine is shutting down");
    } else if (tag == MSG_command_done) {
        if (DECODE(command_done) && l->set.on_command_done)
            l->set.on_command_done(l->set.ctx, &m.command_done);
    } else if (tag == MSG_stream_resumed) {
        if (DECODE(stream_resumed) && l->set.on_stream_resumed)
            l->set.on_stream_resumed(l->set.ctx, &m.stream_resumed);
    } else if (tag == MSG_NONE) {
        rc = q_fail(&e, Q_CORRUPT, "not a frame (%zu bytes)", n);
    }
    if (rc != Q_OK)
        drop_frame(l, e.message);
    arena_reset(&l->arena);
    Q_CHECK(link_check(l));
}

static void expire(struct link *l, int64_t now)
{
    char message[LINK_REASON_MAX + 32];
    for (struct generation *f = l->waiting.first, *next; f; f = next) {
        next = f->next;
        if (l->state == LINK_REFUSED || now - f->since_ms > l->set.engine_timeout_ms) {
            snprintf(message, sizeof message, "the engine is not available: %s", l->reason);
            fail_generation(l, f, Q_UNAVAILABLE, message, 1000);
            next = l->waiting.first; /* the callback may have closed other generations */
        }
    }
}

void link_tick(struct link *l)
{
    Q_ASSERT(l->send);
    int64_t now = clock_ms();
    int64_t silence_ms = (int64_t)l->heartbeat_ms * SILENCE_BEATS;
    if (silence_ms < SILENCE_MIN_MS)
        silence_ms = SILENCE_MIN_MS;
    bool up = l->state == LINK_UP || l->state == LINK_DRAINING;
    if (up && now - l->beat_ms > silence_ms) {
        go_down(l, "the engine does not respond");
        l->silent_since_ms = l->beat_ms;
        note_state(l);
        up = false;
    }
    if (up && now - l->step_ms > STALL_WARN_MS) {
        log_warning("link: the engine is stalled: step %" PRIu64 " has not completed", l->step);
        l->step_ms = now;
    }
    if (up && now - l->sent_beat_ms >=
                  (l->heartbeat_ms < BEAT_EVERY_MS ? l->heartbeat_ms : BEAT_EVERY_MS)) {
        l->sent_beat_ms = now;
        if (!send_beat(l, false)) {
            go_down(l, "the connection to the engine is lost");
            up = false;
        }
    }
    if (up && now - l->beat_ms > (int64_t)l->heartbeat_ms * 3 / 2 &&
        now - l->hello_ms >= HELLO_EVERY_MS)
        probe(l);
    if (!up && now - l->hello_ms >= (l->state == LINK_REFUSED ? REFUSED_EVERY_MS : HELLO_EVERY_MS))
        send_hello(l);
    if (l->unheard_since_ms && now - l->unheard_since_ms > SILENCE_MIN_MS) {
        log_warning("link: no engine has answered at %s yet: retrying", l->set.address);
        l->unheard_since_ms = 0;
    }
    if (l->state != LINK_UP)
        expire(l, now);
    l->is_stuck = false;
    flush_aborts(l);
    link_pump(l);
    Q_CHECK(link_check(l));
}

void link_flush(struct link *l)
{
    flush_aborts(l);
}

FALLIBLE link_init(struct link *l, const struct link_config *c, struct q_err *e)
{
    Q_ASSERT(c->address && *c->address);
    memset(l, 0, sizeof *l);
    l->set = *c;
    l->heartbeat_ms = 1000;
    l->unheard_since_ms = l->away_since_ms = clock_ms();
    l->has_memory = !strncmp(c->address, "ipc://", 6);
    if (l->has_memory)
        item_memory_sweep();
    l->arena = (struct arena)ARENA_INIT(PROTO_FRAME_MAX);
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

/* For so long that a new generation does not wait for it. */
static bool is_away(const struct link *l)
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
    if (is_away(l))
        return q_fail(e, Q_UNAVAILABLE, "the engine is not available: %s", l->reason);
    if (link_n_open(l) >= LINK_FLOWS_MAX)
        return q_fail(e, Q_NO_SPACE, "too many open sequences: the limit is %u; retry later",
                      LINK_FLOWS_MAX);
    if (link_check_items(l, f, e))
        return e->code;
    f->since_ms = clock_ms();
    f->emitted = (struct token_list)TOKEN_LIST_INIT;
    for (size_t i = 0; i < f->n_begun; i++) {
        enum q_code rc = token_list_add(&f->emitted, f->begun[i], e);
        if (rc != Q_OK) {
            token_list_release(&f->emitted);
            return rc;
        }
    }
    generation_list_add(&l->waiting, f);
    const enum q_code rc = pump_opening(l, f, e);
    if (rc)
        token_list_release(&f->emitted);
    metric_set(METRIC_OPEN_SEQUENCES, link_n_open(l));
    Q_CHECK(link_check(l));
    return rc;
}

void link_close(struct link *l, struct generation *f)
{
    Q_ASSERT(!f->list || f->list == &l->waiting || f->list == &l->running);
    if (f->list) {
        if (f->wire_id)
            add_abort(l, f->wire_id);
        withdraw(l, f);
        generation_list_take(f);
        metric_set(METRIC_OPEN_SEQUENCES, link_n_open(l));
    }
    token_list_release(&f->emitted);
}

static void end_list(struct link *l, const struct generation_list *list)
{
    while (list->first) { /* on_error may close others */
        struct generation *f = list->first;
        if (f->wire_id)
            add_abort(l, f->wire_id);
        fail_generation(l, f, Q_UNAVAILABLE, l->ended, 0);
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
