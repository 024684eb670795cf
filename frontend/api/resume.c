/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with the header Last-Event-ID. Each engine is asked for the kept stream; until all have
 * replied the request is pending. Several may have it, if it has moved: the one that has most of it
 * is taken. A timer ends a request whose engines are lost or do not reply. */
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/parse.h"
#include "frontend/api/app.h"
#include "frontend/api/kept_stream.h"

#define PENDING_EVERY_MS 50
#define PENDING_MAX_MS   10000
#define BETTER_MAX_MS    1000 /* for engines that have not replied, once one has the stream */

struct pending_resume {
    struct pending_resume *next;
    uv_timer_t timer;
    struct app *app;
    struct http_exchange *x;
    struct kept_stream *stream; /* id and n_seen */
    uint64_t order_id;
    uint64_t asked[ENGINES_MAX]; /* instances that have not replied; 0 = none */
    struct q_err missing;        /* the first reply of an engine that does not have it */
    struct buf best;             /* the best reply so far, encoded; empty: none has it */
    uint64_t best_tokens;
    uint32_t best_from;
    int64_t until_ms;
};

static void reply_error(struct http_exchange *x, enum q_code code, const char *message)
{
    http_reply_error(x, &(struct http_error){
                            .code = code,
                            .message = message,
                            .openai_code = code == Q_NOT_FOUND ? "stream_not_found" : NULL,
                            .retry_after_s = code == Q_UNAVAILABLE,
                        });
}

static void on_closed(uv_handle_t *h)
{
    q_free(h->data);
}

/* Remove from the list; the caller owns exchange and stream. */
static void end_pending(struct pending_resume *w)
{
    struct pending_resume **at = &w->app->pending_resumes;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    buf_release(&w->best);
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

static void on_client_gone(void *ctx)
{
    struct pending_resume *w = ctx;
    kept_stream_free(w->stream);
    end_pending(w);
}

static void end_with(struct pending_resume *w, enum q_code code, const char *message)
{
    struct http_exchange *x = w->x;
    char copy[Q_MESSAGE_MAX];
    snprintf(copy, sizeof copy, "%s", message);
    http_on_gone(x, NULL, NULL);
    kept_stream_free(w->stream);
    end_pending(w);
    reply_error(x, code, copy);
}

/* No engine has the stream, of those that replied. One that is away may have it, if it comes back
 * in time. */
static void end_missing(struct pending_resume *w)
{
    const struct engines *all = w->app->engines;
    for (uint32_t i = 0; i < engines_n(all); i++) {
        const struct link *l = engines_link(all, i);
        if (link_state(l) != LINK_CONNECTING || link_is_away(l))
            continue;
        end_with(w, Q_UNAVAILABLE, "an engine that may have this stream is not available; retry");
        return;
    }
    end_with(w, w->missing.code, w->missing.message);
}

static void go_on(struct pending_resume *w)
{
    struct app *a = w->app;
    struct http_exchange *x = w->x;
    struct kept_stream *k = w->stream;
    struct buf best = w->best;
    struct link *from = engines_link(a->engines, w->best_from);
    struct arena arena = ARENA_INIT(PROTO_FRAME_MAX);
    struct msg_stream_resumed m = {0};
    struct q_err e = Q_ERR_INIT;
    w->best = (struct buf)BUF_INIT;
    http_on_gone(x, NULL, NULL);
    end_pending(w);
    if (msg_stream_resumed_decode(&m, best.data, best.len, &arena, &e) == Q_OK) {
        job_resume(a, x, from, &m, k);
    } else {
        kept_stream_free(k);
        reply_error(x, e.code, e.message);
    }
    arena_release(&arena);
    buf_release(&best);
}

static void on_pending(uv_timer_t *timer)
{
    struct pending_resume *w = timer->data;
    const struct engines *all = w->app->engines;
    bool waits = false, is_lost = false;
    for (uint32_t i = 0; i < engines_n(all); i++) {
        const bool is_other = link_engine(engines_link(all, i))->instance != w->asked[i];
        is_lost = is_lost || (w->asked[i] && is_other);
        waits = waits || (w->asked[i] && !is_other);
    }
    if (clock_ms() < w->until_ms && (w->best.len ? waits : !is_lost))
        return;
    if (w->best.len)
        go_on(w);
    else
        end_with(w, Q_UNAVAILABLE, "the engine was lost or does not reply; retry");
}

/* Keep a reply if it has more of the stream than the one before. */
static void keep_best(struct pending_resume *w, uint32_t from, const struct msg_stream_resumed *m)
{
    struct buf copy = BUF_INIT;
    if (w->best.len && m->tokens.n <= w->best_tokens)
        return;
    if (msg_stream_resumed_encode(m, &copy, &w->missing)) {
        buf_release(&copy);
        return;
    }
    if (!w->best.len && w->until_ms > clock_ms() + BETTER_MAX_MS)
        w->until_ms = clock_ms() + BETTER_MAX_MS;
    buf_release(&w->best);
    w->best = copy;
    w->best_tokens = m->tokens.n;
    w->best_from = from;
}

static void say(struct q_err *e, enum q_code code, struct proto_str message)
{
    e->code = code;
    snprintf(e->message, sizeof e->message, "%.*s",
             message.n < sizeof e->message ? (int)message.n : (int)sizeof e->message - 1,
             message.n ? message.data : "");
}

void resume_answered(void *app, uint32_t from, const struct msg_stream_resumed *m)
{
    struct app *a = app;
    struct pending_resume *w = a->pending_resumes;
    while (w && w->order_id != m->order_id)
        w = w->next;
    if (!w)
        return;
    const enum q_code code = control_code_of(m->code);
    bool waits = false;
    w->asked[from] = 0;
    if (code == Q_OK)
        keep_best(w, from, m);
    for (uint32_t i = 0; i < engines_n(a->engines); i++)
        waits = waits || w->asked[i];
    /* Of two errors the one that is not "not found" says more. */
    if (code && (w->missing.code == Q_OK || w->missing.code == Q_NOT_FOUND))
        say(&w->missing, code, m->message);
    if (!waits && w->best.len)
        go_on(w);
    else if (!waits)
        end_missing(w);
}

/* 32 hex digits, a point and a number. */
static bool read_id(struct http_text header, struct kept_stream *k)
{
    const size_t n_hex = 2 * sizeof k->id;
    char number[24];
    struct q_err e = Q_ERR_INIT;
    int64_t n_seen;
    if (header.n < n_hex + 2 || header.data[n_hex] != '.' || header.n - n_hex - 1 >= sizeof number)
        return false;
    for (size_t i = 0; i < n_hex; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = memchr(digits, header.data[i], sizeof digits - 1);
        if (!digit)
            return false;
        k->id[i / 2] = (uint8_t)(k->id[i / 2] << 4 | (uint8_t)(digit - digits));
    }
    snprintf(number, sizeof number, "%.*s", (int)(header.n - n_hex - 1), header.data + n_hex + 1);
    if (parse_i64(&n_seen, number, 0, INT64_MAX, "Last-Event-ID", &e) != Q_OK)
        return false;
    k->n_seen = (uint64_t)n_seen;
    return true;
}

static void wait_for_reply(struct app *a, struct http_exchange *x, struct kept_stream *k,
                           const uint64_t *asked, struct pending_resume *w)
{
    *w = (struct pending_resume){
        .app = a,
        .x = x,
        .stream = k,
        .order_id = a->n_order,
        .until_ms = clock_ms() + PENDING_MAX_MS,
        .next = a->pending_resumes,
    };
    memcpy(w->asked, asked, sizeof w->asked);
    a->pending_resumes = w;
    uv_timer_init(&a->loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, on_pending, PENDING_EVERY_MS, PENDING_EVERY_MS);
    http_on_gone(x, on_client_gone, w);
}

/* asked[ENGINES_MAX]: the instances that are. Errors: Q_UNAVAILABLE (of none), Q_TOO_LARGE. */
static FALLIBLE ask_engines(struct app *a, const struct http_exchange *x,
                            const struct kept_stream *k, uint64_t *asked, struct q_err *e)
{
    unsigned char key[32];
    bool any = false;
    const struct msg_resume_stream m = {
        .order_id = ++a->n_order,
        .stream_id = {k->id, sizeof k->id},
        .key_digest = {key, http_key(x, key) ? sizeof key : 0},
    };
    for (uint32_t i = 0; i < engines_n(a->engines); i++) {
        struct link *l = engines_link(a->engines, i);
        q_err_reset(e);
        const bool is_sent = link_resume_stream(l, &m, e) == Q_OK;
        asked[i] = is_sent ? link_engine(l)->instance : 0;
        any = any || is_sent;
    }
    if (any)
        q_err_reset(e);
    return e->code;
}

void resume_start(struct app *a, struct http_exchange *x)
{
    struct q_err e = Q_ERR_INIT;
    struct kept_stream *k = q_calloc(1, sizeof *k);
    struct pending_resume *w = q_calloc(1, sizeof *w);
    uint64_t asked[ENGINES_MAX] = {0};
    enum q_code rc = Q_OK;
    if (!k || !w)
        rc = q_fail(&e, Q_NO_MEMORY, "out of memory for the request");
    else if (a->options->stream_resume_timeout == 0)
        rc = q_fail(&e, Q_NOT_FOUND,
                    "Last-Event-ID: this server keeps no streams (--stream-resume-timeout 0): send "
                    "the request again without this header");
    else if (!read_id(http_header(x, "last-event-id"), k))
        rc = q_fail(&e, Q_NOT_FOUND,
                    "Last-Event-ID: not an id of this server's streams (32 hexadecimal digits, a "
                    "point and a number): send the request again without this header");
    else
        rc = ask_engines(a, x, k, asked, &e);
    if (rc == Q_OK) {
        wait_for_reply(a, x, k, asked, w);
        return;
    }
    kept_stream_free(k);
    q_free(w);
    reply_error(x, rc, e.message);
}
