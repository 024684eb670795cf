/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints by which an operator, or a training program, controls the engine. Names, parameters and
 * responses are vLLM's if vLLM has the endpoint. A request that takes time is pending: it waits for
 * a state in the engine's heartbeats, or for the reply to a command. A timer checks every
 * PENDING_EVERY_MS whether the state is reached or cannot be reached any more. */
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "frontend/api/app.h"
#include "frontend/api/json.h"

#define PENDING_EVERY_MS 5

void on_reset_prefix_cache(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct buf none = BUF_INIT;
    if (!app_available(a, x, on_reset_prefix_cache))
        return;
    if (engines_reset_prefix_cache(a->engines, "POST /reset_prefix_cache", &e) == Q_OK)
        http_reply(x, 200, "application/json", &none);
    else
        app_reply_error(x, &e, NULL);
}

struct pending_control { /* a request that waits for the engine */
    struct pending_control *next;
    uv_timer_t timer;
    struct app *app;
    struct http_exchange *x;    /* NULL after the exchange ended */
    struct msg_control control; /* a state; or */
    uint64_t order_id;          /* an order; 0 = none */
    enum engine_command_kind kind;
    /* Of each engine: the instance that was told; 0: it has replied to the command. */
    uint64_t told[ENGINES_MAX];
    struct q_err result; /* the last reply, or the first that is an error: Q_OK, and its detail */
    uint32_t failed;     /* the engine whose error it is */
    bool any_done;       /* another one has done it */
    int64_t until_ms;    /* 0 = without limit, until the client disconnects */
    const char *say;     /* JSON of the response when the state is reached; NULL = no body */
};

/* One engine has failed, others have not. */
static void say_engine(struct q_err *e, const char *name)
{
    const size_t n = strlen(e->message);
    snprintf(e->message + n, sizeof e->message - n, " (the engine%s; others have done it)", name);
}

static bool is_in_state(const struct link_engine *g, const struct msg_control *s)
{
    const bool asleep = s->sleep == CONTROL_WAKE ? g->sleep_level == 0 : g->sleep_level >= s->sleep;
    const bool paused = s->pause == CONTROL_PAUSE ? g->paused : !g->pausing;
    return (!s->sleep || asleep) && (!s->pause || paused);
}

/* Errors: the reason why it cannot be reached. */
static enum q_code look(const struct pending_control *w, bool *fulfilled, struct q_err *e)
{
    const struct engines *all = w->app->engines;
    *fulfilled = true;
    for (uint32_t i = 0; i < engines_n(all); i++) {
        const struct link_engine *g = link_engine(engines_link(all, i));
        if (!w->told[i])
            continue;
        if (g->instance != w->told[i] || link_is_away(engines_link(all, i)))
            return q_fail(e, Q_UNAVAILABLE, "the engine%s was %s this command; retry",
                          engines_name(all, i),
                          g->instance != w->told[i] ? "restarted and lost" : "lost with");
        if (!w->order_id && is_in_state(g, &w->control))
            continue;
        *fulfilled = false;
        if (w->until_ms && clock_ms() > w->until_ms)
            return q_fail(e, Q_UNAVAILABLE,
                          "timeout: the engine%s did not complete this command in time",
                          engines_name(all, i));
    }
    if (*fulfilled && w->result.code) {
        *e = w->result;
        if (w->any_done)
            say_engine(e, engines_name(all, w->failed));
    }
    return e->code;
}

static void on_closed(uv_handle_t *h)
{
    q_free(h->data);
}

static void end_pending(struct pending_control *w)
{
    struct pending_control **at = &w->app->pending_controls;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (w->x)
        http_on_gone(w->x, NULL, NULL);
    w->x = NULL;
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

static void on_client_gone(void *ctx)
{
    struct pending_control *w = ctx;
    w->x = NULL;
    end_pending(w);
}

/* {"status":"reloaded","weights_path":…,"system_fingerprint":…} or {"path":…} */
static void say_command_done(const struct pending_control *w, struct buf *out)
{
    const char *path = w->result.message;
    if (w->kind == ENGINE_COMMAND_RELOAD) {
        const char *fingerprint = engines_info(w->app->engines)->fingerprint;
        buf_add_str(out, "{\"status\":\"reloaded\",\"weights_path\":");
        buf_add_json_str(out, path, strlen(path));
        buf_add_str(out, ",\"system_fingerprint\":");
        buf_add_json_str(out, fingerprint, strlen(fingerprint));
    } else {
        buf_add_str(out, "{\"path\":");
        buf_add_json_str(out, path, strlen(path));
    }
    buf_add_char(out, '}');
}

/* A message "mode: …" is about the field mode. */
static const char *param_of(const struct q_err *e)
{
    static const char *const names[] = {"mode", "weights_path", "lora_name", "lora_path"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(e->message, names[i], strlen(names[i])) && e->message[strlen(names[i])] == ':')
            return names[i];
    return NULL;
}

static void on_pending(uv_timer_t *timer)
{
    struct pending_control *w = timer->data;
    struct buf body = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    struct http_exchange *x = w->x;
    bool fulfilled;
    enum q_code rc = look(w, &fulfilled, &e);
    if (rc == Q_OK && !fulfilled)
        return;
    const bool is_text =
        w->kind == ENGINE_COMMAND_LOAD_ADAPTER || w->kind == ENGINE_COMMAND_UNLOAD_ADAPTER;
    if (rc == Q_OK && is_text)
        buf_printf(&body, "Success: LoRA adapter '%s' %s successfully.", w->result.message,
                   w->kind == ENGINE_COMMAND_LOAD_ADAPTER ? "added" : "removed");
    else if (rc == Q_OK && w->order_id)
        say_command_done(w, &body);
    else if (rc == Q_OK && w->say)
        buf_add_str(&body, w->say);
    end_pending(w);
    if (rc == Q_OK)
        http_reply(x, 200, is_text ? "text/plain; charset=utf-8" : "application/json", &body);
    else
        app_reply_error(x, &e, param_of(&e));
}

/* The engine has been told. */
static void wait_for(struct app *a, struct http_exchange *x, const struct pending_control *wanted)
{
    struct pending_control *w = q_calloc(1, sizeof *w);
    if (!w) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_NO_MEMORY,
                                .message = "out of memory for the request",
                            });
        return;
    }
    *w = *wanted;
    w->app = a;
    w->x = x;
    for (uint32_t i = 0; i < engines_n(a->engines); i++)
        w->told[i] = link_engine(engines_link(a->engines, i))->instance;
    w->next = a->pending_controls;
    a->pending_controls = w;
    uv_timer_init(&a->loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, on_pending, PENDING_EVERY_MS, PENDING_EVERY_MS);
    http_on_gone(x, on_client_gone, w);
}

/* Running requests during a reload, if the request does not say: those of a paused engine stay. */
static FALLIBLE tell(struct link *to, const struct msg_command *command, struct q_err *e)
{
    const struct link_engine *g = link_engine(to);
    struct msg_command m = *command;
    if (m.mode == IN_FLIGHT_MODES)
        m.mode = g->pausing || g->sleep_level ? IN_FLIGHT_KEEP : IN_FLIGHT_WAIT;
    return link_command(to, &m, e);
}

/* Send a state or a command to each engine. Errors: Q_UNAVAILABLE. */
static FALLIBLE tell_all(struct app *a, const struct msg_control *state,
                         const struct msg_command *command, struct q_err *e)
{
    enum q_code rc = engines_need_all(a->engines, e);
    for (uint32_t i = 0; i < engines_n(a->engines) && !rc; i++) {
        struct link *to = engines_link(a->engines, i);
        rc = state ? link_control(to, state, e) : tell(to, command, e);
        if (rc && i) /* its connection broke this moment */
            say_engine(e, engines_name(a->engines, i));
    }
    return rc;
}

static void control(struct app *a, struct http_exchange *x, const struct msg_control *m,
                    const char *say)
{
    struct q_err e = Q_ERR_INIT;
    struct pending_control w = {.control = *m, .say = say};
    if (m->pause_mode != IN_FLIGHT_WAIT)
        w.until_ms = clock_ms() + a->options->engine_timeout * 1000;
    if (tell_all(a, m, NULL, &e) == Q_OK)
        wait_for(a, x, &w);
    else
        app_reply_error(x, &e, NULL);
}

void control_order(struct app *a, struct http_exchange *x, struct msg_command *m)
{
    struct q_err e = Q_ERR_INIT;
    m->order_id = ++a->n_order;
    if (tell_all(a, NULL, m, &e) == Q_OK)
        wait_for(a, x,
                 &(struct pending_control){
                     .order_id = m->order_id,
                     .kind = (enum engine_command_kind)m->kind,
                 });
    else
        app_reply_error(x, &e, NULL);
}

enum q_code control_code_of(struct proto_str name)
{
    for (int c = 0; c < Q_CODE_COUNT; c++) {
        const char *known = q_code_name((enum q_code)c);
        if (strlen(known) == name.n && !memcmp(known, name.data, name.n))
            return (enum q_code)c;
    }
    return Q_INTERNAL;
}

void control_command_done(void *app, uint32_t from, const struct msg_command_done *m)
{
    struct app *a = app;
    for (struct pending_control *w = a->pending_controls; w; w = w->next) {
        if (w->order_id != m->order_id || !w->told[from])
            continue;
        const enum q_code code = control_code_of(m->code);
        w->told[from] = 0;
        w->any_done = w->any_done || !code;
        if (w->result.code)
            continue;
        w->result.code = code;
        w->failed = from;
        snprintf(w->result.message, sizeof w->result.message, "%.*s",
                 m->message.n < Q_MESSAGE_MAX ? (int)m->message.n : Q_MESSAGE_MAX - 1,
                 m->message.n ? m->message.data : "");
    }
}

/* The value of `name` in the query; n = 0: absent. */
static struct http_text query_value(const struct http_exchange *x, const char *name)
{
    struct http_text q = http_query(x);
    size_t n_name = strlen(name);
    for (size_t at = 0; at < q.n;) {
        const char *part = q.data + at, *end = memchr(part, '&', q.n - at);
        size_t n = end ? (size_t)(end - part) : q.n - at;
        if (n > n_name && !memcmp(part, name, n_name) && part[n_name] == '=')
            return (struct http_text){part + n_name + 1, n - n_name - 1};
        at += n + 1;
    }
    return (struct http_text){"", 0};
}

static bool text_is(struct http_text t, const char *value)
{
    return t.n == strlen(value) && !memcmp(t.data, value, t.n);
}

static bool query_is(const struct http_exchange *x, const char *name, const char *value)
{
    return text_is(query_value(x, name), value);
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
    if (!query_value(x, "level").n || query_is(x, "level", "1"))
        control(app, x, &(struct msg_control){.sleep = 1}, NULL);
    else if (query_is(x, "level", "2"))
        control(app, x, &(struct msg_control){.sleep = 2}, NULL);
    else
        refuse(x, "level", "level: expected 1 (frees the KV cache) or 2 (also frees the weights)");
}

void on_wake_up(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_wake_up))
        control(app, x, &(struct msg_control){.sleep = CONTROL_WAKE}, NULL);
}

#define MODE_TEXT                                                                                  \
    "mode: expected \"abort\" (running requests end with their tokens so far), \"wait\" (running " \
    "requests finish first) or \"keep\" (running requests continue afterwards)"

static bool mode_parse(struct http_text t, uint32_t *mode)
{
    static const char *const names[IN_FLIGHT_MODES] = {
        [IN_FLIGHT_KEEP] = "keep",
        [IN_FLIGHT_ABORT] = "abort",
        [IN_FLIGHT_WAIT] = "wait",
    };
    for (*mode = 0; *mode < IN_FLIGHT_MODES; ++*mode)
        if (text_is(t, names[*mode]))
            return true;
    return false;
}

/* A flag of the query: "true", "false", "1", "0", or absent. False: another value. */
static bool flag_parse(struct http_text t, bool *flag)
{
    *flag = text_is(t, "true") || text_is(t, "True") || text_is(t, "1");
    return *flag || !t.n || text_is(t, "false") || text_is(t, "False") || text_is(t, "0");
}

void on_pause(void *app, struct http_exchange *x)
{
    struct msg_control m = {.pause = CONTROL_PAUSE, .pause_mode = IN_FLIGHT_ABORT};
    struct http_text mode = query_value(x, "mode");
    bool wait;
    if (!app_available(app, x, on_pause))
        return;
    if (mode.n && !mode_parse(mode, &m.pause_mode))
        refuse(x, "mode", MODE_TEXT);
    else if (!flag_parse(query_value(x, "clear_cache"), &m.clear_cache))
        refuse(x, "clear_cache", "clear_cache: expected true or false");
    else if (!flag_parse(query_value(x, "wait_for_inflight_requests"), &wait))
        refuse(x, "wait_for_inflight_requests",
               "wait_for_inflight_requests: expected true or false");
    else {
        if (wait) /* vLLM's older way to say it */
            m.pause_mode = IN_FLIGHT_WAIT;
        control(app, x, &m, "{\"status\":\"paused\"}");
    }
}

void on_resume(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_resume))
        control(app, x, &(struct msg_control){.pause = CONTROL_RESUME}, "{\"status\":\"resumed\"}");
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
        reply_state(x, "is_sleeping", engines_info(a->engines)->sleep_level > 0);
}

/* As in vLLM, true from the moment at which no new request starts; is_draining is true while
 * requests are running. */
void on_is_paused(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct buf body = BUF_INIT;
    if (!app_available(a, x, on_is_paused))
        return;
    const struct link_engine *g = engines_info(a->engines);
    buf_printf(&body, "{\"is_paused\":%s,\"is_draining\":%s}", g->pausing ? "true" : "false",
               g->pausing && !g->paused ? "true" : "false");
    http_reply(x, 200, "application/json", &body);
}

/* Errors: Q_INVALID, begins with the field's name. */
static enum q_code read_reload(struct msg_command *m, json_t *body, struct q_err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach (body, key, v) {
        bool is_path = !strcmp(key, "weights_path");
        struct http_text text = {json_string_value(v), json_string_length(v)};
        if (!is_path && strcmp(key, "mode") != 0)
            return q_fail(e, Q_INVALID, "%.60s: unknown field; accepted are weights_path and mode",
                          key);
        if (json_is_null(v))
            continue;
        if (!json_is_string(v))
            return q_fail(e, Q_INVALID, "%s: expected a string, got %s", key, json_kind(v));
        if (is_path && !text.n)
            return q_fail(e, Q_INVALID,
                          "weights_path: is empty; omit the field to reload the current folder");
        if (is_path)
            m->path = (struct proto_str){text.data, text.n};
        else if (!mode_parse(text, &m->mode))
            return q_fail(e, Q_INVALID, MODE_TEXT);
    }
    return Q_OK;
}

void on_reload_weights(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct http_text text = http_body(x);
    json_t *body = NULL;
    if (!app_available(a, x, on_reload_weights))
        return;
    struct msg_command m = {.kind = ENGINE_COMMAND_RELOAD, .mode = IN_FLIGHT_MODES};
    enum q_code rc = text.n ? json_body(&body, text.data, text.n, &e) : Q_OK;
    if (rc == Q_OK)
        rc = read_reload(&m, body, &e);
    if (rc == Q_OK) {
        control_order(a, x, &m);
    } else {
        char param[64];
        snprintf(param, sizeof param, "%.*s", (int)strcspn(e.message, ":"), e.message);
        app_reply_error(x, &e, body ? param : NULL);
    }
    json_decref(body);
}

void on_start_profile(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_start_profile))
        control_order(app, x, &(struct msg_command){.kind = ENGINE_COMMAND_START_PROFILE});
}

void on_stop_profile(void *app, struct http_exchange *x)
{
    if (app_available(app, x, on_stop_profile))
        control_order(app, x, &(struct msg_command){.kind = ENGINE_COMMAND_STOP_PROFILE});
}
