/* SPDX-License-Identifier: Apache-2.0 */
/* quire-chat: talk to a server in the terminal. A line is a message; the answer is printed while it
 * comes. From a pipe, every line is answered in turn and nothing but the answers is printed. What
 * the model thinks is dimmed and stands before the answer; where standard output is no terminal it
 * goes to standard error under a heading. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/options.h"
#include "frontend/cli/http_client.h"

#define EVENT_MAX ((size_t)16 << 20) /* bytes of one event, or of an answer that is no stream */

struct chat_session {
    const struct options *options;
    struct http_url url;
    json_t *messages;
    struct buf line;   /* of the event stream, unfinished; or the whole body of an error */
    struct buf answer; /* content so far */
    const struct http_call *call;
    bool in_call;  /* a tool call is being printed */
    bool thinking; /* what the model thinks is being printed */
    bool terminal; /* standard output is one */
};

static const char *api_key(const struct options *o)
{
    return o->api_key.n ? o->api_key.items[0] : NULL;
}

static void show_calls(struct chat_session *s, const json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach ((json_t *)calls, i, call) {
        const json_t *f = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        const char *arguments = json_string_value(json_object_get(f, "arguments"));
        if (name)
            printf("%s[%s ", s->in_call ? "]\n" : "", name);
        s->in_call = true;
        fputs(arguments ? arguments : "", stdout);
    }
}

/* NULL: the thinking, if there was some, is over. */
static void show_thinking(struct chat_session *s, const char *text)
{
    FILE *to = s->terminal ? stdout : stderr;
    if (text && !s->thinking)
        fputs(s->terminal ? "\x1b[2m" : "(thinking)\n", to);
    if (text)
        fputs(text, to);
    else if (s->thinking)
        fputs(s->terminal ? "\x1b[0m\n\n" : "\n(answer)\n", to);
    fflush(to);
    s->thinking = text;
}

static enum q_code on_event(struct chat_session *s, const char *text, struct q_err *e)
{
    if (!strcmp(text, "[DONE]"))
        return Q_OK;
    json_t *v = json_loads(text, 0, NULL);
    const json_t *error = json_object_get(v, "error");
    const json_t *delta =
        json_object_get(json_array_get(json_object_get(v, "choices"), 0), "delta");
    const char *content = json_string_value(json_object_get(delta, "content")),
               *thought = json_string_value(json_object_get(delta, "reasoning"));
    const json_t *calls = json_object_get(delta, "tool_calls");
    enum q_code rc = Q_OK;
    if (error)
        rc = q_fail(e, Q_UNAVAILABLE, "%s", json_string_value(json_object_get(error, "message")));
    if (thought && *thought)
        show_thinking(s, thought);
    else if ((content && *content) || calls)
        show_thinking(s, NULL);
    if (content) {
        fputs(content, stdout);
        buf_add_str(&s->answer, content);
    }
    show_calls(s, calls);
    fflush(stdout);
    json_decref(v);
    return rc;
}

static enum q_code on_body(void *ctx, const char *data, size_t n, struct q_err *e)
{
    struct chat_session *s = ctx;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < n && rc == Q_OK; i++) {
        if (data[i] != '\n' || s->call->status != 200) {
            buf_add_char(&s->line, data[i]);
            continue;
        }
        if (s->line.len > 6 && !memcmp(s->line.data, "data: ", 6))
            rc = on_event(s, s->line.data + 6, e);
        buf_reset(&s->line);
    }
    return rc == Q_OK ? buf_check(&s->line, "the server's answer", e) : rc;
}

/* What an error body says, as our error. */
static enum q_code refused(const struct chat_session *s, int status, struct q_err *e)
{
    json_t *v = json_loadb(buf_str(&s->line), s->line.len, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(v, "error"), "message"));
    enum q_code rc = q_fail(e, Q_INVALID, "the server answered %d: %s", status,
                            message ? message : "(no reason)");
    json_decref(v);
    return rc;
}

static json_t *request(const struct chat_session *s)
{
    const struct options *o = s->options;
    json_t *v = json_pack("{s:O, s:b}", "messages", s->messages, "stream", 1);
    if (*o->model_name)
        json_object_set_new(v, "model", json_string(o->model_name));
    if (o->max_tokens)
        json_object_set_new(v, "max_completion_tokens", json_integer(o->max_tokens));
    if (o->temperature >= 0)
        json_object_set_new(v, "temperature", json_real(o->temperature));
    if (o->top_p >= 0)
        json_object_set_new(v, "top_p", json_real(o->top_p));
    if (o->top_k >= 0)
        json_object_set_new(v, "top_k", json_integer(o->top_k));
    if (o->seed >= 0)
        json_object_set_new(v, "seed", json_integer(o->seed));
    return v;
}

static int add_piece(const char *data, size_t n, void *out)
{
    buf_add(out, data, n);
    return 0;
}

static enum q_code ask(struct chat_session *s, const char *text, struct q_err *e)
{
    json_array_append_new(s->messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    json_t *v = request(s);
    struct buf body = BUF_INIT;
    bool made = v && json_dump_callback(v, add_piece, &body, JSON_COMPACT) == 0;
    struct http_call call = {.method = "POST",
                             .path = "/v1/chat/completions",
                             .api_key = api_key(s->options),
                             .body = buf_str(&body),
                             .n_body = body.len,
                             .on_body = on_body,
                             .ctx = s};
    enum q_code rc;
    buf_reset(&s->line);
    buf_reset(&s->answer);
    s->call = &call;
    s->in_call = false;
    s->thinking = false;
    rc = made ? http_call(&s->url, &call, e) : q_fail(e, Q_INVALID, "the message is not UTF-8");
    show_thinking(s, NULL);
    if (rc == Q_OK && call.status != 200)
        rc = refused(s, call.status, e);
    if (rc == Q_OK) {
        puts(s->in_call ? "]" : "");
        json_array_append_new(s->messages, json_pack("{s:s, s:s}", "role", "assistant", "content",
                                                     buf_str(&s->answer)));
    } else {
        json_array_remove(s->messages,
                          json_array_size(s->messages) - 1); /* it can be asked again */
    }
    s->call = NULL;
    buf_release(&body);
    json_decref(v);
    return rc;
}

static void begin(struct chat_session *s)
{
    json_decref(s->messages);
    s->messages = json_array();
    if (*s->options->system)
        json_array_append_new(
            s->messages, json_pack("{s:s, s:s}", "role", "system", "content", s->options->system));
}

/* A line that begins with a slash. False: it ends the program. */
static bool command(struct chat_session *s, const char *line)
{
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit"))
        return false;
    if (!strcmp(line, "/reset")) {
        begin(s);
        fputs("(a new conversation)\n", stderr);
    } else {
        fputs("/reset begins anew, /exit ends\n", stderr);
    }
    return true;
}

/* One line of input without its end, however long. False: there is no more. */
static bool read_line(struct buf *line)
{
    int c;
    buf_reset(line);
    while ((c = getchar()) != EOF && c != '\n')
        if (c != '\r')
            buf_add_char(line, (char)c);
    return c != EOF || line->len;
}

static int talk(struct chat_session *s)
{
    bool terminal = isatty(STDIN_FILENO);
    struct buf line = BUF_INIT;
    int code = 0;
    for (;;) {
        struct q_err e = Q_ERR_INIT;
        if (terminal)
            fputs("> ", stderr);
        if (!read_line(&line))
            break;
        if (line.len == 0)
            continue;
        if (line.data[0] == '/') {
            if (!command(s, line.data))
                break;
            continue;
        }
        if (ask(s, line.data, &e) == Q_OK)
            continue;
        fprintf(stderr, "quire chat: %s\n", e.message);
        code = 1;
        if (!terminal)
            break;
    }
    buf_release(&line);
    return terminal ? 0 : code;
}

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_CHAT,
        .name = "quire chat",
        .usage = "[options]",
        .about = "Talks to a running server. Type a message and Enter; /reset begins a new "
                 "conversation, /exit or Ctrl-D ends. "
                 "With a pipe as input, every line is answered in turn.",
        .positional_min = 0,
        .positional_max = 0,
    };
    struct chat_session s = {.options = &o, .line = BUF_INIT_MAX(EVENT_MAX), .answer = BUF_INIT};
    struct q_err e = Q_ERR_INIT;
    char url[64];
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    snprintf(url, sizeof(url), "http://127.0.0.1:%d", (int)o.port);
    if (http_url_parse(&s.url, *o.url ? o.url : url, &e) != Q_OK) {
        fprintf(stderr, "quire chat: %s\n", e.message);
        return 2;
    }
    s.terminal = isatty(STDOUT_FILENO);
    begin(&s);
    code = talk(&s);
    json_decref(s.messages);
    buf_release(&s.line);
    buf_release(&s.answer);
    return code;
}
