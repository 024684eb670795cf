/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/chat_stream.h"
#include <string.h>
#include "common/clock.h"
#include "common/json_read.h"

#define EVENT_MAX ((size_t)16 << 20) /* bytes of one event, or of a response that is not a stream */
#define CALLS_MAX 128

struct stream {
    struct http_call call; /* its ctx is this */
    struct chat_answer *answer;
    struct buf line; /* incomplete line of the stream, or the body of another response */
    bool whole;      /* the body is no stream */
};

void chat_answer_release(struct chat_answer *a)
{
    buf_release(&a->content);
    json_decref(a->calls);
    a->calls = NULL;
}

/* Append to a string member. */
static void extend(json_t *object, const char *key, const char *more)
{
    struct buf b = BUF_INIT;
    const char *old = json_string_value(json_object_get(object, key));
    buf_add_str(&b, old ? old : "");
    buf_add_str(&b, more);
    json_object_set_new(object, key, json_string(buf_str(&b)));
    buf_release(&b);
}

static void take_calls(struct chat_answer *a, const json_t *deltas)
{
    size_t i;
    json_t *delta;
    json_array_foreach ((json_t *)(uintptr_t)deltas, i, delta) {
        size_t at = (size_t)json_integer_value(json_object_get(delta, "index"));
        const json_t *f = json_object_get(delta, "function");
        const char *name = json_string_value(json_object_get(f, "name")),
                   *id = json_string_value(json_object_get(delta, "id")),
                   *args = json_string_value(json_object_get(f, "arguments"));
        if (!a->calls)
            a->calls = json_array();
        if (at >= CALLS_MAX || at > json_array_size(a->calls))
            continue;
        if (at == json_array_size(a->calls))
            json_array_append_new(a->calls, json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id ? id : "",
                                                      "type", "function", "function", "name",
                                                      name ? name : "", "arguments", ""));
        if (args)
            extend(json_object_get(json_array_get(a->calls, at), "function"), "arguments", args);
    }
}

static void take_text(struct chat_answer *a, const json_t *delta)
{
    const json_t *thought = json_object_get(delta, "reasoning"),
                 *content = json_object_get(delta, "content");
    if (!thought || json_is_null(thought))
        thought = json_object_get(delta, "reasoning_content");
    if (json_string_length(thought))
        a->on_text(a->ctx, json_string_value(thought), json_string_length(thought), true);
    if (!json_string_length(content))
        return;
    buf_add(&a->content, json_string_value(content), json_string_length(content));
    a->on_text(a->ctx, json_string_value(content), json_string_length(content), false);
}

static FALLIBLE on_event(struct stream *s, const char *text, struct q_err *e)
{
    struct chat_answer *a = s->answer;
    enum q_code rc = Q_OK;
    if (!strcmp(text, "[DONE]"))
        return Q_OK;
    json_t *v = json_read_string(text, 0, NULL);
    const json_t *error = json_object_get(v, "error"), *usage = json_object_get(v, "usage");
    const json_t *delta =
        json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta");
    if (!v)
        rc = q_fail(e, Q_CORRUPT, "an event of the server's response is not JSON");
    if (error) {
        const char *why = json_string_value(json_object_get(error, "message"));
        rc = q_fail(e, Q_UNAVAILABLE, "%s", why ? why : "the server ended the response early");
    }
    if (json_is_object(usage)) {
        a->n_prompt = (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        a->n_token = (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    }
    if (delta) {
        a->last_us = clock_us();
        if (!a->first_us)
            a->first_us = a->last_us;
        take_text(a, delta);
        take_calls(a, json_object_get(delta, "tool_calls"));
    }
    json_decref(v);
    return rc ? rc : buf_check(&a->content, "the answer", e);
}

static enum q_code on_body(void *ctx, const char *data, size_t n, struct q_err *e)
{
    struct stream *s = ctx;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < n && rc == Q_OK; i++) {
        if (data[i] != '\n' || s->whole || s->call.status != 200) {
            buf_add_char(&s->line, data[i]);
            continue;
        }
        if (s->line.len && s->line.data[s->line.len - 1] == '\r')
            s->line.data[--s->line.len] = '\0';
        rc = buf_check(&s->line, "the server's answer", e);
        if (!rc && s->line.len > 6 && !memcmp(s->line.data, "data: ", 6))
            rc = on_event(s, s->line.data + 6, e);
        buf_reset(&s->line);
    }
    return rc == Q_OK ? buf_check(&s->line, "the server's answer", e) : rc;
}

/* Convert an error body to an error. */
static FALLIBLE refused(const struct stream *s, struct q_err *e)
{
    json_t *v = json_read_bytes(buf_str(&s->line), s->line.len, 0, NULL);
    const json_t *error = json_object_get(v, "error");
    const char *message = json_string_value(json_object_get(error, "message")),
               *code = json_string_value(json_object_get(error, "code"));
    bool full = code && !strcmp(code, "context_length_exceeded");
    enum q_code rc = q_fail(e, full ? Q_NO_SPACE : Q_INVALID, "the server returned HTTP %d: %s",
                            s->call.status, message ? message : "(no message)");
    json_decref(v);
    return rc;
}

static FALLIBLE call(struct stream *s, const struct chat_peer *peer, struct q_err *e)
{
    s->call.api_key = peer->key;
    s->call.on_body = on_body;
    s->call.ctx = s;
    s->call.stop = peer->stop;
    s->line.max = EVENT_MAX;
    enum q_code rc = http_call(&peer->url, &s->call, e);
    return !rc && s->call.status != 200 ? refused(s, e) : rc;
}

static int add_piece(const char *data, size_t n, void *out)
{
    buf_add(out, data, n);
    return 0;
}

FALLIBLE chat_stream(const struct chat_peer *peer, const json_t *body, struct chat_answer *a,
                     struct q_err *e)
{
    struct buf text = BUF_INIT;
    enum q_code rc;
    if (json_dump_callback(body, add_piece, &text, JSON_COMPACT) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the request");
    else
        rc = buf_check(&text, "the request", e);
    if (!rc) {
        struct stream s = {
            .answer = a,
            .call =
                {
                    .method = "POST",
                    .path = "/v1/chat/completions",
                    .body = buf_str(&text),
                    .n_body = text.len,
                },
        };
        a->asked_us = clock_us();
        rc = call(&s, peer, e);
        buf_release(&s.line);
    }
    buf_release(&text);
    return rc;
}

FALLIBLE chat_models(const struct chat_peer *peer, json_t **names, struct q_err *e)
{
    struct stream s = {.whole = true, .call = {.method = "GET", .path = "/v1/models"}};
    size_t i;
    json_t *model;
    enum q_code rc = call(&s, peer, e);
    json_t *v = rc ? NULL : json_read_bytes(buf_str(&s.line), s.line.len, 0, NULL);
    const json_t *data = json_object_get(v, "data");
    if (!rc && json_array_size(data) == 0)
        rc = q_fail(e, Q_CORRUPT,
                    "the server at %s://%s:%s lists no models: expected a server with OpenAI's API",
                    http_url_scheme(&peer->url), peer->url.host, peer->url.port);
    *names = rc ? NULL : json_array();
    json_array_foreach ((json_t *)(uintptr_t)data, i, model)
        if (*names && json_is_string(json_object_get(model, "id")))
            json_array_append(*names, json_object_get(model, "id"));
    json_decref(v);
    buf_release(&s.line);
    return rc;
}
