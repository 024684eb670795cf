/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/chat_talk.h"
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "common/file.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/utf8.h"

#define TOOLS_BYTES_MAX ((size_t)16 << 20)
#define IMAGE_BYTES_MAX ((size_t)256 << 20) /* the server has its own limit */
#define WIDTH_DEFAULT   80
#define DIM             "\033[2m"
#define PLAIN           "\033[0m"

static const json_t *at_end(const struct chat_talk *t, size_t back)
{
    size_t n = json_array_size(t->messages);
    return back < n ? json_array_get(t->messages, n - 1 - back) : NULL;
}

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static void drop_last(struct chat_talk *t)
{
    if (json_array_size(t->messages))
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
}

static FALLIBLE add(struct chat_talk *t, json_t *message, struct q_err *e)
{
    if (!message || json_array_append_new(t->messages, message) != 0)
        return q_fail(e, Q_INVALID, "the message is not UTF-8, or contains a NUL character");
    return Q_OK;
}

const char *talk_system(const struct chat_talk *t)
{
    const json_t *first = json_array_get(t->messages, 0);
    bool is = !strcmp(role_of(first), "system");
    return is ? json_string_value(json_object_get(first, "content")) : NULL;
}

void talk_reset(struct chat_talk *t)
{
    size_t keep = talk_system(t) ? 1 : 0;
    if (!t->messages)
        t->messages = json_array();
    while (json_array_size(t->messages) > keep)
        drop_last(t);
    json_decref(t->images);
    t->images = NULL;
}

void talk_release(struct chat_talk *t)
{
    json_decref(t->messages);
    json_decref(t->tools);
    json_decref(t->images);
    wrap_release(&t->wrap);
    t->messages = t->tools = t->images = NULL;
}

FALLIBLE talk_set_system(struct chat_talk *t, const char *text, struct q_err *e)
{
    json_t *message = text ? json_pack("{s:s,s:s}", "role", "system", "content", text) : NULL;
    if (text && !message)
        return q_fail(e, Q_INVALID, "the system message is not UTF-8");
    if (talk_system(t))
        json_array_remove(t->messages, 0);
    if (message && json_array_insert_new(t->messages, 0, message) != 0)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the system message");
    return Q_OK;
}

FALLIBLE talk_load_tools(struct chat_talk *t, const char *path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    json_error_t why;
    enum q_code rc = path ? file_read(&text, path, TOOLS_BYTES_MAX, e) : Q_OK;
    json_t *v = NULL;
    if (!rc && path && !(v = json_read_bytes(buf_str(&text), text.len, 0, &why)))
        rc = q_fail(e, Q_INVALID, "%s is not valid JSON: line %d, column %d: %s", path, why.line,
                    why.column, why.text);
    if (!rc && path && (!json_is_array(v) || json_array_size(v) == 0))
        rc = q_fail(e, Q_INVALID,
                    "%s: expected an array of tools, [{\"type\": \"function\", \"function\": "
                    "{\"name\": …}}]",
                    path);
    buf_release(&text);
    if (rc) {
        json_decref(v);
        return rc;
    }
    json_decref(t->tools);
    t->tools = v;
    return Q_OK;
}

FALLIBLE talk_save(const struct chat_talk *t, const char *path, bool replace, struct q_err *e)
{
    json_t *v = json_pack("{s:s,s:O}", "model", t->model, "messages", t->messages);
    bool folder = dir_exists(path); /* "wx" fails with "file exists" */
    FILE *out = folder ? NULL : fopen(path, replace ? "we" : "wxe");
    enum q_code rc = Q_OK;
    if (t->tools && v)
        json_object_set(v, "tools", t->tools);
    if (!out)
        rc = q_fail(e, Q_IO, "%s: %s", path,
                    folder ? "is a folder; /save requires a file name" : strerror(errno));
    else if (!v || json_dumpf(v, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF ||
             fflush(out) != 0)
        rc = q_fail(e, Q_IO, "cannot write %s: %s", path, strerror(errno));
    if (out)
        fclose(out);
    json_decref(v);
    return rc;
}

/* By the file's name, as clients say it; servers look at the bytes. */
static const char *media_type(const char *path)
{
    static const char *const types[][2] = {
        {".jpg", "jpeg"},
        {".jpeg", "jpeg"},
        {".webp", "webp"},
        {".gif", "gif"},
    };
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++)
        if (!strcasecmp(dot, types[i][0]))
            return types[i][1];
    return "png";
}

static FALLIBLE data_url(struct buf *out, const char *path, struct q_err *e)
{
    struct buf data = BUF_INIT;
    enum q_code rc = file_read(&data, path, IMAGE_BYTES_MAX, e);
    if (!rc) {
        unsigned char *text = q_alloc(data.len / 3 * 4 + 8);
        buf_printf(out, "data:image/%s;base64,", media_type(path));
        const int n =
            text ? EVP_EncodeBlock(text, (const unsigned char *)buf_str(&data), (int)data.len) : -1;
        if (n >= 0)
            buf_add(out, text, (size_t)n);
        rc = n < 0 ? q_fail(e, Q_NO_MEMORY, "out of memory for %.200s", path)
                   : buf_check(out, path, e);
        q_free(text);
    }
    buf_release(&data);
    return rc;
}

FALLIBLE talk_attach_image(struct chat_talk *t, const char *path, struct q_err *e)
{
    struct buf url = BUF_INIT;
    enum q_code rc = path ? data_url(&url, path, e) : Q_OK;
    if (!path) {
        json_decref(t->images);
        t->images = NULL;
    } else if (!rc) {
        if (!t->images)
            t->images = json_array();
        json_t *part = json_pack("{s:s,s:{s:s%}}", "type", "image_url", "image_url", "url",
                                 buf_str(&url), url.len);
        if (json_array_append_new(t->images, part) != 0)
            rc = q_fail(e, Q_NO_MEMORY, "out of memory for %.200s", path);
    }
    buf_release(&url);
    return rc;
}

FALLIBLE talk_add_user(struct chat_talk *t, const char *text, struct q_err *e)
{
    if (!t->images)
        return add(t, json_pack("{s:s,s:s}", "role", "user", "content", text), e);
    json_t *part = json_pack("{s:s,s:s}", "type", "text", "text", text);
    if (!part)
        return add(t, NULL, e);
    if (json_array_append_new(t->images, part) != 0)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the message");
    json_t *message = json_pack("{s:s,s:o}", "role", "user", "content", t->images);
    t->images = NULL; /* the message has them */
    return add(t, message, e);
}

const json_t *talk_waiting_call(const struct chat_talk *t)
{
    size_t n_result = 0;
    while (!strcmp(role_of(at_end(t, n_result)), "tool"))
        n_result++;
    const json_t *calls = json_object_get(at_end(t, n_result), "tool_calls");
    return json_array_get(calls, n_result);
}

FALLIBLE talk_add_result(struct chat_talk *t, const char *text, struct q_err *e)
{
    const char *id = json_string_value(json_object_get(talk_waiting_call(t), "id"));
    return add(
        t,
        json_pack("{s:s,s:s,s:s}", "role", "tool", "tool_call_id", id ? id : "", "content", text),
        e);
}

void talk_drop_calls(struct chat_talk *t)
{
    while (!strcmp(role_of(at_end(t, 0)), "tool"))
        drop_last(t);
    if (json_object_get(at_end(t, 0), "tool_calls"))
        drop_last(t);
}

bool talk_rewind(struct chat_talk *t)
{
    size_t n = json_array_size(t->messages);
    while (n && strcmp(role_of(json_array_get(t->messages, n - 1)), "user") != 0)
        n--;
    if (!n)
        return false;
    while (json_array_size(t->messages) > n)
        drop_last(t);
    return true;
}

/* the answer on the terminal */

static void put_answer(struct chat_talk *t)
{
    fwrite(buf_str(&t->wrap.out), 1, t->wrap.out.len, stdout);
    fflush(stdout);
    t->wrap.has_lost |= t->wrap.out.failed != Q_OK;
    buf_reset(&t->wrap.out);
}

/* Print reasoning; NULL: its end. On a terminal it is dimmed and precedes the answer; otherwise it
 * goes to standard error under a heading. */
static void show_thinking(struct chat_talk *t, const char *text, size_t n)
{
    if (text && !t->thinking)
        fputs(t->terminal ? DIM : "(thinking)\n", t->terminal ? stdout : stderr);
    if (text && t->terminal) {
        wrap_add(&t->wrap, text, n);
    } else if (text) {
        struct buf safe = BUF_INIT;
        printable_add(&t->thought, text, n, &safe);
        fwrite(buf_str(&safe), 1, safe.len, stderr);
        buf_release(&safe);
    } else if (t->thinking) {
        wrap_flush(&t->wrap);
        put_answer(t);
        fputs(t->terminal ? PLAIN "\n\n" : "\n(answer)\n", t->terminal ? stdout : stderr);
        t->wrap.column = 0;
        t->wrap.begun = false;
    }
    t->thinking = text != NULL;
}

static void on_text(void *ctx, const char *text, size_t n, bool reasoning)
{
    struct chat_talk *t = ctx;
    show_thinking(t, reasoning ? text : NULL, n);
    if (!reasoning)
        wrap_add(&t->wrap, text, n);
    put_answer(t);
}

static void show_calls(struct chat_talk *t, const json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach ((json_t *)(uintptr_t)calls, i, call) {
        const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name"),
                     *args = json_object_get(f, "arguments");
        fputs(t->terminal ? "\033[1mtool call\033[0m " : "[", stdout);
        wrap_add(&t->wrap, json_string_value(name), json_string_length(name));
        wrap_add(&t->wrap, t->terminal ? "(" : " ", 1);
        wrap_add(&t->wrap, json_string_value(args), json_string_length(args));
        wrap_add(&t->wrap, t->terminal ? ")\n" : "]\n", 2);
        put_answer(t);
    }
}

static void show_speed(const struct chat_answer *a)
{
    double seconds = (double)(a->last_us - a->first_us) / 1e6;
    fprintf(stderr, "[%llu prompt + %llu output tokens, first token after %.2f s",
            (unsigned long long)a->n_prompt, (unsigned long long)a->n_token,
            (double)(a->first_us - a->asked_us) / 1e6);
    if (a->n_token > 1 && seconds > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(a->n_token - 1) / seconds);
    fputs("]\n", stderr);
}

static unsigned terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20)
        return WIDTH_DEFAULT;
    return size.ws_col;
}

static json_t *request(const struct chat_talk *t)
{
    const struct options *o = t->options;
    json_t *v = json_pack("{s:O, s:b}", "messages", t->messages, "stream", 1);
    if (*t->model)
        json_object_set_new(v, "model", json_string(t->model));
    if (t->tools)
        json_object_set(v, "tools", t->tools);
    if (t->verbose)
        json_object_set_new(v, "stream_options", json_pack("{s:b}", "include_usage", 1));
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

/* Make a message of the received output; tool calls only if all of them are complete. */
static FALLIBLE keep(struct chat_talk *t, const struct chat_answer *a, bool whole, struct q_err *e)
{
    json_t *message = json_pack("{s:s,s:s%}", "role", "assistant", "content", buf_str(&a->content),
                                a->content.len);
    if (message && whole && a->calls)
        json_object_set(message, "tool_calls", a->calls);
    return add(t, message, e);
}

FALLIBLE talk_answer(struct chat_talk *t, struct q_err *e)
{
    struct chat_answer a = {.content = BUF_INIT, .on_text = on_text, .ctx = t};
    struct q_err ignored = Q_ERR_INIT;
    json_t *body = request(t);
    wrap_release(&t->wrap);
    t->wrap.width = t->terminal ? terminal_width() : 0;
    t->thinking = false;
    t->thought = (struct printable){.n_partial = 0};
    enum q_code rc = body ? chat_stream(&t->peer, body, &a, e)
                          : q_fail(e, Q_NO_MEMORY, "out of memory for the request");
    show_thinking(t, NULL, 0);
    wrap_flush(&t->wrap);
    put_answer(t);
    if (a.content.len || rc || !a.calls)
        if (!rc || a.first_us)
            puts("");
    if (!rc)
        show_calls(t, a.calls);
    if (!rc && t->wrap.has_lost)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory: a part of the answer is not shown");
    fflush(stdout);
    if (!rc && t->verbose)
        show_speed(&a);
    bool kept = !rc || (rc == Q_CANCELLED && a.content.len);
    if (kept && keep(t, &a, !rc, rc ? &ignored : e) && !rc)
        rc = e->code;
    else if (!kept && !strcmp(role_of(at_end(t, 0)), "user"))
        drop_last(t);
    chat_answer_release(&a);
    json_decref(body);
    return rc;
}
