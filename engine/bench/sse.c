/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/sse.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "common/json_read.h"

void sse_init(struct sse *s, sse_on_piece *on_piece, void *ctx)
{
    *s = (struct sse){.line = BUF_INIT_MAX(SSE_LINE_MAX), .on_piece = on_piece, .ctx = ctx};
}

void sse_release(struct sse *s)
{
    buf_release(&s->line);
}

static bool has_string(const json_t *o, const char *key)
{
    return json_string_length(json_object_get(o, key)) > 0;
}

/* A choice of /v1/completions has text, one of /v1/chat/completions a delta. Ids come from servers
 * without a tokenizer. */
static bool has_token(const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    return has_string(choice, "text") || has_string(delta, "content") ||
           has_string(delta, "reasoning_content") || has_string(delta, "reasoning") ||
           json_array_size(json_object_get(delta, "tool_calls")) > 0 ||
           json_array_size(json_object_get(choice, "token_ids")) > 0;
}

static uint32_t count_of(const json_t *usage, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(usage, key));
    return n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static void read_piece(struct sse_piece *p, const json_t *event)
{
    const json_t *choices = json_object_get(event, "choices");
    const json_t *usage = json_object_get(event, "usage");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        p->has_token |= has_token(choice);
        p->has_finish |= json_is_string(json_object_get(choice, "finish_reason"));
    }
    p->has_usage = json_is_object(usage);
    p->n_input = count_of(usage, "prompt_tokens");
    p->n_output = count_of(usage, "completion_tokens");
}

/* The message of {"error": {"message": …}}, {"error": "…"} or {"message": …}; NULL: none. */
static const char *error_of(const json_t *event)
{
    const json_t *error = json_object_get(event, "error");
    const char *text =
        json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    if (!text && error && !json_is_null(error))
        text = "an error without a message";
    return text;
}

static FALLIBLE take_event(struct sse *s, const char *data, size_t n, struct q_err *e)
{
    struct sse_piece p = {0};
    json_error_t why;
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        s->done = true;
        return Q_OK;
    }
    json_t *event = json_read_bytes(data, n, 0, &why);
    if (!json_is_object(event)) {
        json_decref(event);
        return q_fail(e, Q_CORRUPT, "the server sent an event that is not a JSON object: %.*s",
                      (int)(n < 100 ? n : 100), data);
    }
    const char *error = error_of(event);
    enum q_code rc = Q_OK;
    if (error) {
        rc = q_fail(e, Q_CORRUPT, "the server reports: %.200s", error);
    } else {
        read_piece(&p, event);
        rc = s->on_piece(s->ctx, &p, e);
    }
    json_decref(event);
    return rc;
}

static FALLIBLE take_line(struct sse *s, struct q_err *e)
{
    const char *line = buf_str(&s->line);
    size_t n = s->line.len;
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    if (n < 5 || memcmp(line, "data:", 5) != 0)
        return Q_OK;
    for (line += 5, n -= 5; n && *line == ' '; n--)
        line++;
    return n ? take_event(s, line, n, e) : Q_OK;
}

enum q_code sse_push(struct sse *s, const char *data, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t at = 0; at < n && !rc;) {
        const char *newline = memchr(data + at, '\n', n - at);
        size_t len = newline ? (size_t)(newline - data) - at : n - at;
        buf_add(&s->line, data + at, len);
        if ((rc = buf_check(&s->line, "an event", e)))
            return rc;
        at += len;
        if (newline) {
            at++;
            rc = take_line(s, e);
            buf_reset(&s->line);
        }
    }
    return rc;
}

void sse_error_text(char *out, size_t size, const char *body, size_t n)
{
    json_t *o = json_read_bytes(body, n, 0, NULL);
    const char *text = error_of(o);
    text = text ? text : json_string_value(json_object_get(o, "message"));
    text = text ? text : json_string_value(json_object_get(o, "detail"));
    if (text)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%.*s", (int)(n < 200 ? n : 200), body);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    json_decref(o);
}
