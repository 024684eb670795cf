/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's messages: hello, errors, heartbeats, tokens. link.c sends and keeps time. */
#include <inttypes.h>
#include <string.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "frontend/link/link.h"
#include "frontend/link/link_internal.h"
#include "proto/item_types.h"

#define FULL_RETRY_MS 200 /* interval of resubmission to a full engine that gave no time */
#define OUTPUT_MEMORY 32  /* generations that the mean of output tokens remembers */

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
        link_fail(l, culprit, Q_INTERNAL, message, 0);
    }
    if (!l->engine_instance || is_same || !strcmp(now, l->engine.fingerprint))
        return;
    snprintf(message, sizeof message,
             "the engine was restarted with other weights or settings (%s, before %s): the answer "
             "cannot go on; send the request again",
             now, l->engine.fingerprint);
    for (struct generation *f = l->waiting.first, *next; f; f = next) {
        next = f->next;
        if (!f->emitted.n && !f->n_prompt_row)
            continue;
        log_error("link: a request failed: %s", message);
        link_fail(l, f, Q_MISMATCH, message, 0);
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
        link_go_down(l, m->instance == l->engine_instance ? "the engine reconnected"
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
            log_error("link%s: %s", l->set.name, reason);
        link_set_state(l, LINK_REFUSED, reason);
        return;
    }
    end_unfit(l, m);
    copy_str(g->fingerprint, sizeof g->fingerprint, m->fingerprint);
    take_adapters(g, &m->adapters);
    g->vocab_size = m->vocab_size;
    g->max_model_len = m->max_model_len;
    g->max_num_seqs = m->max_num_seqs;
    g->credit = m->credit;
    g->max_num_reqs = m->max_num_reqs;
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
    log_info("link%s: connected to engine %s: model %s, at most %u tokens per request, %u running "
             "sequences",
             l->set.name, g->version, g->model, g->max_model_len, g->max_num_seqs);
    link_set_state(l, LINK_UP, "");
    link_flush_aborts(l);
    link_pump(l);
}

/* Has the engine accepted a generation of its request? Answers come in the order of submissions, so
 * a running one that was submitted before this one has been accepted. */
static bool is_of_accepted(const struct link *l, const struct generation *f)
{
    if (!f->request)
        return false;
    for (const struct generation *g = l->running.first; g && !f->request->accepted; g = g->next)
        f->request->accepted = g->request == f->request && g->wire_id < f->wire_id;
    return f->request->accepted;
}

/* There is no room for the other generations of an accepted request now. */
static void hold_back(struct link_request *r, uint32_t retry_ms)
{
    r->window = r->n_submitted ? r->n_submitted : 1;
    r->not_before_ms = clock_ms() + retry_ms;
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
            link_note_state(l);
            return;
        }
        if (found != Q_MISMATCH || l->state != LINK_REFUSED)
            log_error("link%s: the engine reports an error: %s: %s", l->set.name, code, message);
        if (found == Q_MISMATCH) {
            if (l->running.n)
                link_go_down(l, message);
            link_set_state(l, LINK_REFUSED, message);
        }
        return;
    }
    struct generation *f = generation_by_wire_id(l, m->req_id);
    if (!f)
        return;
    /* A generation with output is not rejected because of a full queue or a pause: its client has
     * received a part of the answer. Nor is one that the engine accepted before it was lost: all of
     * these are submitted again at once, and the queue may be too short for them. Nor is one of a
     * request of which the engine has others: to come again later would not help its client. */
    const uint32_t retry_ms = m->retry_after_ms ? m->retry_after_ms : FULL_RETRY_MS;
    bool promised = f->emitted.n || f->taken || (found == Q_NO_SPACE && is_of_accepted(l, f));
    if ((found == Q_UNAVAILABLE && (promised || !l->engine.refusing)) ||
        (found == Q_NO_SPACE && promised)) {
        link_take_back(l, f);
        f->has_turn = m->alone;
        if (m->alone) {
            link_pump(l);
            return;
        }
        f->not_before_ms = clock_ms() + retry_ms;
        if (f->request && found == Q_NO_SPACE)
            hold_back(f->request, retry_ms);
        if (found == Q_UNAVAILABLE && clock_ms() - l->hello_ms >= FULL_RETRY_MS)
            link_probe(l); /* the engine may not know this frontend any more */
        return;
    }
    l->n_failing += found == Q_INTERNAL;
    if (found != Q_NO_SPACE || !l->set.on_full || !l->set.on_full(l->set.ctx, f))
        link_fail(l, f, found, message, m->retry_after_ms);
    link_pump(l);
}

static void show_speculation(struct link *l, const struct msg_heartbeat *m)
{
    static const enum metric places[] = {METRIC_ACCEPTED_0, METRIC_ACCEPTED_1, METRIC_ACCEPTED_2,
                                         METRIC_ACCEPTED_3, METRIC_ACCEPTED_4, METRIC_ACCEPTED_5,
                                         METRIC_ACCEPTED_6, METRIC_ACCEPTED_7};
    double n_accepted = 0;
    for (size_t i = 0; i < m->accepted_at.n; i++) {
        n_accepted += (double)m->accepted_at.data[i];
        if (i < sizeof places / sizeof *places)
            link_count(l, places[i], (double)m->accepted_at.data[i]);
    }
    link_count(l, METRIC_DRAFTS, (double)m->n_draft);
    link_count(l, METRIC_DRAFT_TOKENS, (double)m->n_draft_token);
    link_count(l, METRIC_ACCEPTED, n_accepted);
    link_count(l, METRIC_FORCED_TOKENS, (double)m->n_forced_token);
    link_count(l, METRIC_FORCED_ACCEPTED, (double)m->n_forced_accepted);
}

/* Tokens of each step, in buckets. */
static void show_iterations(struct link *l, const struct msg_heartbeat *m)
{
    struct link_totals *all = l->set.totals, *noted = &l->noted;
    const size_t n = m->iteration_tokens.n;
    const double n_token = (double)(m->prompt_tokens + m->generation_tokens);
    const bool again = n_token < noted->of[METRIC_ITERATION]; /* the engine was restarted */
    if (n > sizeof all->iterations / sizeof *all->iterations)
        return;
    if (again)
        memset(noted->iterations, 0, sizeof noted->iterations);
    if (again && all == &l->own) /* as its other counters */
        memset(all->iterations, 0, sizeof all->iterations);
    for (size_t i = 0; i < n; i++) {
        all->iterations[i] += m->iteration_tokens.data[i] - noted->iterations[i];
        noted->iterations[i] = m->iteration_tokens.data[i];
    }
    all->of[METRIC_ITERATION] += n_token - (again ? 0 : noted->of[METRIC_ITERATION]);
    noted->of[METRIC_ITERATION] = n_token;
    if (all == &l->own)
        all->of[METRIC_ITERATION] = n_token;
    metric_set_buckets(METRIC_ITERATION, all->iterations, (uint32_t)n, all->of[METRIC_ITERATION]);
}

static void show_usage(enum metric m, enum metric used, enum metric total)
{
    metric_set(m, metric_value(total) > 0 ? metric_value(used) / metric_value(total) : 0);
}

static void on_heartbeat(struct link *l, const struct msg_heartbeat *m)
{
    const uint32_t n_all = m->n_running + m->n_waiting;
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
    link_note(l, METRIC_RUNNING, m->n_running);
    link_note(l, METRIC_WAITING, m->n_waiting);
    link_note(l, METRIC_SWAPPED, m->n_swapped);
    link_note(l, METRIC_KV_USED, m->kv_blocks_used);
    link_note(l, METRIC_KV_TOTAL, m->kv_blocks_total);
    show_usage(METRIC_KV_USAGE, METRIC_KV_USED, METRIC_KV_TOTAL);
    link_count(l, METRIC_STEP_GAPS, (double)m->n_gap);
    link_count(l, METRIC_STEP_GAP_SECONDS, (double)m->gap_us * 1e-6);
    link_note(l, METRIC_SWAP_USED, m->swap_blocks_used);
    link_note(l, METRIC_SWAP_TOTAL, m->swap_blocks_total);
    show_usage(METRIC_SWAP_USAGE, METRIC_SWAP_USED, METRIC_SWAP_TOTAL);
    link_note(l, METRIC_ENGINE_STEP, (double)m->step);
    link_note(l, METRIC_ENGINE_DRAINING, m->draining);
    link_note(l, METRIC_ENGINE_BAD_FRAMES, (double)m->n_bad_frame);
    link_note(l, METRIC_ENGINE_ABORTED, (double)m->n_aborted);
    link_note(l, METRIC_ENGINE_TENANTS, m->n_tenant);
    link_count(l, METRIC_TIMEOUTS, (double)m->n_timeout);
    link_count(l, METRIC_PUSHED_OUT, (double)m->n_pushed_out);
    link_count(l, METRIC_PREEMPTIONS, (double)m->n_preemption);
    link_count(l, METRIC_PREEMPTIONS_SWAP, (double)m->n_swap_out);
    link_count(l, METRIC_PREEMPTIONS_RECOMPUTE, (double)m->n_preemption - (double)m->n_swap_out);
    link_count(l, METRIC_PREFIX_QUERIES, (double)m->prefix_queries);
    link_count(l, METRIC_PREFIX_HITS, (double)m->prefix_hits);
    link_count(l, METRIC_ENGINE_PROMPT, (double)m->prompt_tokens);
    link_count(l, METRIC_ENGINE_GENERATION, (double)m->generation_tokens);
    show_iterations(l, m);
    show_speculation(l, m);
    l->n_others = n_all > l->running.n ? n_all - l->running.n : 0;
    if (m->draining && l->state == LINK_UP)
        link_set_state(l, LINK_DRAINING, "the engine is shutting down");
    else if (!m->draining && l->state == LINK_DRAINING)
        link_set_state(l, LINK_UP, "");
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
    link_add_abort(l, f->wire_id);
    link_take_back(l, f);
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
            link_add_abort(l, f->wire_id);
            link_fail(l, f, e.code, e.message, 0);
            return;
        }
    }
    if (t->n)
        link_note_prefilled(l, f);
    if (f->request) {
        f->request->accepted = true;
        f->request->window += f->request->window && seq == 0 && t->n;
    }
    if (t->finish != FINISH_NONE) {
        l->n_failing += t->finish == FINISH_ERROR;
        l->mean_output += ((double)(f->emitted.n - f->n_begun) - l->mean_output) / OUTPUT_MEMORY;
        link_drop(l, f);
    }
    if (link_suspect_passed(f, t->n) && f->list) { /* the next suspect has its turn, alone */
        link_add_abort(l, f->wire_id);
        link_take_back(l, f);
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
            link_set_state(l, LINK_DRAINING, "the engine is shutting down");
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
