/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with the header Last-Event-ID. The engine is asked for the kept stream; until it
 * replies, the request is pending. A timer ends one whose engine is lost or does not reply. */
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/parse.h"
#include "frontend/api/app.h"
#include "frontend/api/kept_stream.h"

#define PENDING_EVERY_MS 50
#define PENDING_MAX_MS   10000

struct pending_resume {
    struct pending_resume *next;
    uv_timer_t timer;
    struct app *app;
    struct http_exchange *x;
    struct kept_stream *stream; /* id and n_seen */
    uint64_t order_id;
    uint64_t instance; /* the engine that was asked */
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
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

static void on_client_gone(void *ctx)
{
    struct pending_resume *w = ctx;
    kept_stream_free(w->stream);
    end_pending(w);
}

static void on_pending(uv_timer_t *timer)
{
    struct pending_resume *w = timer->data;
    struct http_exchange *x = w->x;
    if (link_engine(w->app->link)->instance == w->instance && clock_ms() < w->until_ms)
        return;
    http_on_gone(x, NULL, NULL);
    kept_stream_free(w->stream);
    end_pending(w);
    reply_error(x, Q_UNAVAILABLE, "the engine was lost or does not reply; retry");
}

void resume_answered(void *app, const struct msg_stream_resumed *m)
{
    struct app *a = app;
    char message[Q_MESSAGE_MAX];
    struct pending_resume *w = a->pending_resumes;
    while (w && w->order_id != m->order_id)
        w = w->next;
    if (!w)
        return;
    struct http_exchange *x = w->x;
    struct kept_stream *k = w->stream;
    http_on_gone(x, NULL, NULL);
    end_pending(w);
    const enum q_code code = control_code_of(m->code);
    if (code == Q_OK) {
        job_resume(a, x, m, k);
        return;
    }
    kept_stream_free(k);
    snprintf(message, sizeof message, "%.*s",
             m->message.n < sizeof message ? (int)m->message.n : (int)sizeof message - 1,
             m->message.n ? m->message.data : "");
    reply_error(x, code, message);
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
                           struct pending_resume *w)
{
    *w = (struct pending_resume){
        .app = a,
        .x = x,
        .stream = k,
        .order_id = a->n_order,
        .instance = link_engine(a->link)->instance,
        .until_ms = clock_ms() + PENDING_MAX_MS,
        .next = a->pending_resumes,
    };
    a->pending_resumes = w;
    uv_timer_init(&a->loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, on_pending, PENDING_EVERY_MS, PENDING_EVERY_MS);
    http_on_gone(x, on_client_gone, w);
}

/* e is set on failure; k and w belong to the caller then. */
static FALLIBLE ask_engine(struct app *a, struct http_exchange *x, const struct kept_stream *k,
                           struct q_err *e)
{
    unsigned char key[32];
    const struct msg_resume_stream m = {
        .order_id = ++a->n_order,
        .stream_id = {k->id, sizeof k->id},
        .key_digest = {key, http_key(x, key) ? sizeof key : 0},
    };
    return link_resume_stream(a->link, &m, e);
}

void resume_start(struct app *a, struct http_exchange *x)
{
    struct q_err e = Q_ERR_INIT;
    struct kept_stream *k = q_calloc(1, sizeof *k);
    struct pending_resume *w = q_calloc(1, sizeof *w);
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
        rc = ask_engine(a, x, k, &e);
    if (rc == Q_OK) {
        wait_for_reply(a, x, k, w);
        return;
    }
    kept_stream_free(k);
    q_free(w);
    reply_error(x, rc, e.message);
}
