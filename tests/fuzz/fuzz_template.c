/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates of arbitrary bytes, rendered with a conversation under small limits: text or a
 * reason, the same twice. What follows a NUL byte is JSON: the values instead, and if there are
 * messages among them, the conversation of a request. */
#include <stdlib.h>
#include "common/utf8.h"
#include "common/template/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct template_text {
    const char *s;
    size_t n;
};

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\u00e9 \"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", "
    "\"text\": \"<a> \\ud83d\\ude00\"}]}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"x\": 1.5, \"y\": [true, null, -7]}}}]}], \"tools\": [{\"type\": "
    "\"function\", \"function\": {\"name\": "
    "\"f\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"number\"}}}}}], \"bos_token\": "
    "\"<s>\", \"x\": 3, \"s\": \"a,b c\", "
    "\"add_generation_prompt\": true}";

/* Ranges of the output, in order, that do not touch. */
static void check_ranges(const struct ranges *r, const struct buf *out)
{
    for (size_t i = 0; i < r->n; i++)
        Q_ASSERT((!i || r->at[i].start > r->at[i - 1].end) && r->at[i].start < r->at[i].end &&
                 r->at[i].end <= out->len);
}

static enum q_code render(const struct template *t, const json_t *variables, struct buf *out)
{
    static const struct template_limits limits = {1u << 18, 8u << 20, 200000, 250};
    static const char *const own[] = {"bos_token", "add_generation_prompt"};
    struct ranges content = RANGES_INIT;
    json_t *names = json_object();
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        json_object_set(names, own[i], json_object_get(variables, own[i]));
    const struct template_run run = {
        .variables = names,
        .request = variables,
        .content = &content,
        .now = 1700000000,
        .limits = &limits,
    };
    struct template_fault fault;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = template_render(t, &run, out, &fault, &e);
    Q_ASSERT(rc == e.code &&
             (rc == Q_OK || rc == Q_INVALID || rc == Q_TOO_LARGE || rc == Q_NO_MEMORY));
    Q_ASSERT(rc == Q_OK || fault.type[0]);
    Q_ASSERT(utf8_valid(e.message, strlen(e.message)));
    Q_ASSERT(utf8_valid(buf_str(out), out->len));
    check_ranges(&content, out);
    ranges_release(&content);
    json_decref(names);
    return rc;
}

/* As a request's messages, through what transformers does around the template. */
static void chat(const struct template_text *text, const json_t *values)
{
    struct chat *c = NULL;
    struct q_err e = Q_ERR_INIT;
    struct buf out = BUF_INIT;
    struct template_fault fault = {0};
    struct ranges content = RANGES_INIT;
    const struct chat_request r = {
        .origin = &content,
        .messages = json_object_get(values, "messages"),
        .tools = json_object_get(values, "tools"),
        .kwargs = json_object_get(values, "kwargs"),
        .add_generation_prompt = json_is_true(json_object_get(values, "add_generation_prompt")),
        .continue_final_message = json_is_true(json_object_get(values, "continue")),
        .content = (enum chat_content)(text->n % 4),
        .now = 1700000000,
    };
    if (!json_is_array(r.messages) || (r.kwargs && !json_is_object(r.kwargs)) ||
        chat_from_source(&c, text->s, text->n, &fault, &e))
        return;
    enum q_code rc = chat_render(c, &r, &out, &fault, &e);
    Q_ASSERT(rc == e.code && utf8_valid(e.message, strlen(e.message)));
    Q_ASSERT(rc || utf8_valid(buf_str(&out), out.len));
    if (!rc)
        check_ranges(&content, &out);
    ranges_release(&content);
    buf_release(&out);
    chat_free(c);
}

static void use(const struct template *t, const json_t *values)
{
    struct buf first = BUF_INIT, second = BUF_INIT;
    enum q_code rc = render(t, values, &first);
    Q_ASSERT(rc == render(t, values, &second));
    Q_ASSERT(first.len == second.len && memcmp(buf_str(&first), buf_str(&second), first.len) == 0);
    buf_release(&first);
    buf_release(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *usual;
    struct template *t = NULL;
    struct template_fault fault = {0};
    struct q_err e = Q_ERR_INIT;
    if (!usual)
        usual = json_loads(conversation, 0, NULL);
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    const struct template_text text = {(const char *)data, nul ? (size_t)(nul - data) : n};
    json_t *values =
        nul ? json_loadb((const char *)nul + 1, n - text.n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    enum q_code rc = template_compile(&t, text.s, text.n, &fault, &e);
    Q_ASSERT(rc == e.code);
    Q_ASSERT(!rc || rc == Q_TOO_LARGE || rc == Q_NO_MEMORY || (fault.line > 0 && fault.column > 0));
    if (!rc)
        use(t, json_is_object(values) ? values : usual);
    if (!rc && json_is_object(values))
        chat(&text, values);
    json_decref(values);
    template_free(t);
    return 0;
}
