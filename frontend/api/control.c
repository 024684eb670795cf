/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints by which an operator, or a program that trains in a loop, steers the engine. They take
 * no body; names and answers are vLLM's. What takes time is answered when a heartbeat says that it
 * is reached: a wish looks at it every WISH_EVERY_MS. */
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "frontend/api/app.h"

#define WISH_EVERY_MS 5

void on_reset_prefix_cache(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct buf none = BUF_INIT;
    if (!app_available(a, x, on_reset_prefix_cache))
        return;
    if (link_reset_prefix_cache(a->link, "POST /reset_prefix_cache", &e) == Q_OK)
        http_reply(x, 200, "application/json", &none);
    else
        app_reply_error(x, &e, NULL);
}

struct wish { /* a request that waits for a state of the engine */
    uv_timer_t timer;
    struct app *app;
    struct http_exchange *x; /* NULL once gone */
    uint32_t sleep, pause;   /* as in msg_steer */
    int64_t until_ms;
};

static bool fulfilled(const struct wish *w)
{
    const struct link_engine *g = link_engine(w->app->link);
    bool asleep = w->sleep == STEER_WAKE ? g->sleep_level == 0 : g->sleep_level >= w->sleep;
    return (!w->sleep || asleep) && (!w->pause || g->paused == (w->pause == STEER_PAUSE));
}

static void on_closed(uv_handle_t *h)
{
    q_free(h->data);
}

static void end_wish(struct wish *w)
{
    if (w->x)
        http_on_gone(w->x, NULL, NULL);
    w->x = NULL;
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

static void on_wisher_gone(void *ctx)
{
    struct wish *w = ctx;
    w->x = NULL;
    end_wish(w);
}

static void on_wish(uv_timer_t *timer)
{
    struct wish *w = timer->data;
    struct buf none = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    struct http_exchange *x = w->x;
    bool late = clock_ms() > w->until_ms;
    if (!fulfilled(w) && !late)
        return;
    end_wish(w);
    if (!late) {
        http_reply(x, 200, "application/json", &none);
        return;
    }
    enum q_code rc = q_fail(&e, Q_UNAVAILABLE, "the engine did not get there in time");
    (void)rc; /* in e */
    app_reply_error(x, &e, NULL);
}

static void steer(struct app *a, struct http_exchange *x, uint32_t sleep, uint32_t pause)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = link_steer(a->link, sleep, pause, &e);
    struct wish *w = rc == Q_OK ? q_calloc(1, sizeof(*w)) : NULL;
    if (rc == Q_OK && !w)
        rc = q_fail(&e, Q_NO_MEMORY, "no memory for the request");
    if (rc != Q_OK) {
        app_reply_error(x, &e, NULL);
        return;
    }
    w->app = a;
    w->x = x;
    w->sleep = sleep;
    w->pause = pause;
    w->until_ms = clock_ms() + a->options->engine_timeout * 1000;
    uv_timer_init(&a->loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, on_wish, WISH_EVERY_MS, WISH_EVERY_MS);
    http_on_gone(x, on_wisher_gone, w);
}

/* Does the query have name=value? Absent or empty: what `otherwise` says. */
static bool query_is(const struct http_exchange *x, const char *name, const char *value,
                     bool otherwise)
{
    struct http_text q = http_query(x);
    size_t n_name = strlen(name), n_value = strlen(value);
    for (size_t at = 0; at < q.n;) {
        const char *part = q.data + at, *end = memchr(part, '&', q.n - at);
        size_t n = end ? (size_t)(end - part) : q.n - at;
        if (n > n_name && !memcmp(part, name, n_name) && part[n_name] == '=')
            return n - n_name - 1 == n_value && !memcmp(part + n_name + 1, value, n_value);
        at += n + 1;
    }
    return otherwise;
}

static void refuse(struct http_exchange *x, const char *param, const char *message)
{
    http_reply_error(x,
                     &(struct http_error){.code = Q_INVALID, .message = message, .param = param});
}

void on_sleep(void *app, struct http_exchange *x)
{
    if (!app_available(app, x, on_sleep))
        return;
    if (query_is(x, "level", "1", true))
        steer(app, x, 1, 0);
    else if (query_is(x, "level", "2", false))
        steer(app, x, 2, 0);
    else
        refuse(x, "level", "level: expected 1 (the KV cache is given back) or 2 (the weights too)");
}

void on_wake_up(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_wake_up))
        steer(app, x, STEER_WAKE, 0);
}

void on_pause(void *app, struct http_exchange *x)
{
    if (!app_available(app, x, on_pause))
        return;
    if (query_is(x, "mode", "keep", false))
        steer(app, x, 0, STEER_PAUSE);
    else
        refuse(x, "mode",
               "mode: the only one supported yet is \"keep\" (requests stay and go on after "
               "/resume); say /pause?mode=keep");
}

void on_resume(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_resume))
        steer(app, x, 0, STEER_RESUME);
}

static void reply_state(struct http_exchange *x, const char *name, bool state)
{
    struct buf body = BUF_INIT;
    buf_printf(&body, "{\"%s\":%s}", name, state ? "true" : "false");
    http_reply(x, 200, "application/json", &body);
}

void on_is_sleeping(void *app, struct http_exchange *x)
{
    struct app *a = app;
    if (app_available(a, x, on_is_sleeping))
        reply_state(x, "is_sleeping", link_engine(a->link)->sleep_level > 0);
}

void on_is_paused(void *app, struct http_exchange *x)
{
    struct app *a = app;
    if (app_available(a, x, on_is_paused))
        reply_state(x, "is_paused", link_engine(a->link)->paused);
}
