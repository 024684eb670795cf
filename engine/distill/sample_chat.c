/* SPDX-License-Identifier: Apache-2.0 */
/* The conversation is rendered whole, and for each assistant message the messages before it and
 * those up to it. With most templates these texts are beginnings of the whole, and where they end
 * is where the answer begins and ends. Templates that write a message otherwise once later ones
 * follow (reasoning left out, tools before the last question) need a search: a place in the whole
 * that has the same text before it as the end of the shorter text, as much of it as there is. What
 * bounds the search is where the whole begins to differ when the message is another one. */
#include "engine/distill/sample_chat.h"
#include <ctype.h>
#include <string.h>
#include "common/chat/json.h"
#include "common/chat/messages.h"
#include "common/chat/roles.h"
#include "common/mem.h"

#define NOW       1721952000 /* 2024-07-26, Llama's own default: the same tokens on any day */
#define MATCH_MAX 4096u      /* bytes that are compared before a place */

struct rendered {
    struct buf text;
    struct ranges content, generated;
};

struct conversation {
    const struct chat *chat;
    json_t *messages, *tools;
    const json_t *kwargs;
    struct rendered whole;
    struct ranges spans; /* of whole.text: what counts */
};

static void rendered_release(struct rendered *r)
{
    buf_release(&r->text);
    ranges_release(&r->content);
    ranges_release(&r->generated);
}

static enum q_code render(const struct conversation *c, const json_t *messages, bool add_prompt,
                          struct rendered *out, struct q_err *e)
{
    const struct chat_request r = {
        .messages = messages,
        .tools = c->tools,
        .kwargs = c->kwargs,
        .add_generation_prompt = add_prompt,
        .content = CHAT_CONTENT_AUTO,
        .now = NOW,
        .origin = &out->content,
        .generated = &out->generated,
    };
    *out = (struct rendered){.text = BUF_INIT};
    enum q_code rc = chat_render(c->chat, &r, &out->text, NULL, e);
    if (!rc)
        rc = buf_check(&out->text, "the rendered conversation", e);
    return rc;
}

/* The first n messages. *there: the template takes them. Errors: Q_NO_MEMORY. */
static enum q_code render_first(const struct conversation *c, size_t n, bool add_prompt,
                                struct rendered *out, bool *there, struct q_err *e)
{
    json_t *first = json_array();
    enum q_code rc = first ? Q_OK : q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    *out = (struct rendered){.text = BUF_INIT};
    for (size_t i = 0; i < n && !rc; i++)
        if (json_array_append(first, json_array_get(c->messages, i)) != 0)
            rc = q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    if (!rc && n)
        rc = render(c, first, add_prompt, out, e);
    *there = !rc && n;
    json_decref(first);
    if (rc && rc != Q_NO_MEMORY) {
        q_err_reset(e);
        rc = Q_OK;
    }
    return rc;
}

/* ---- texts ---- */

static size_t common_prefix(const struct buf *a, const struct buf *b)
{
    const size_t n = a->len < b->len ? a->len : b->len;
    size_t i = 0;
    while (i < n && a->data[i] == b->data[i])
        i++;
    return i;
}

/* Bytes that are the same before a[at] and before b's end; at most n. */
static size_t same_before(const struct buf *a, size_t at, const struct buf *b, size_t n)
{
    size_t i = 0;
    n = n < at ? n : at;
    n = n < b->len ? n : b->len;
    while (i < n && a->data[at - 1 - i] == b->data[b->len - 1 - i])
        i++;
    return i;
}

/* Back to where a character begins. */
static size_t char_start(const struct buf *b, size_t at)
{
    while (at && at < b->len && ((unsigned char)b->data[at] & 0xC0u) == 0x80u)
        at--;
    return at;
}

/* ---- the bound of a message ---- */

static bool put_text(json_t *object, const char *key, const char *text)
{
    return json_object_set_new(object, key, json_string(text)) == 0;
}

/* The messages with another text in all that message i says. */
static json_t *with_other(const json_t *messages, size_t i, const char *text)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    json_t *copy = json_copy((json_t *)(uintptr_t)messages);
    json_t *m = json_deep_copy(json_array_get(messages, i)), *call;
    size_t k;
    bool ok = copy && m && put_text(m, "content", text);
    for (size_t n = 0; n < sizeof keys / sizeof *keys; n++)
        if (json_is_string(json_object_get(m, keys[n])))
            ok = ok && put_text(m, keys[n], text);
    json_array_foreach (json_object_get(m, "tool_calls"), k, call)
        ok = ok && put_text(json_object_get(call, "function"), "name", text);
    if (ok && json_array_set(copy, i, m) != 0)
        ok = false;
    json_decref(m);
    if (!ok) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

/* *at: no byte of the whole text before it is what message i says; its end where that cannot be
 * told. Errors: Q_NO_MEMORY. */
static enum q_code find_bound(const struct conversation *c, size_t i, size_t *at, struct q_err *e)
{
    struct rendered r[2] = {{.text = BUF_INIT}, {.text = BUF_INIT}};
    enum q_code rc = Q_OK;
    for (size_t k = 0; k < 2 && !rc; k++) {
        json_t *messages = with_other(c->messages, i, k ? "1" : "0");
        rc = messages ? render(c, messages, false, &r[k], e)
                      : q_fail(e, Q_NO_MEMORY, "messages: out of memory");
        json_decref(messages);
    }
    *at = c->whole.text.len;
    if (!rc) {
        const size_t differs = common_prefix(&r[0].text, &r[1].text);
        const size_t same = common_prefix(&r[0].text, &c->whole.text);
        *at = differs < same ? differs : same;
    }
    rendered_release(&r[0]);
    rendered_release(&r[1]);
    if (rc && rc != Q_NO_MEMORY) {
        q_err_reset(e);
        rc = Q_OK;
    }
    return rc;
}

/* ---- where an answer begins and ends ---- */

/* White space that the template writes behind its own last words. */
static size_t without_space(const struct rendered *whole, size_t start, size_t end)
{
    size_t at = end;
    while (at > start && isspace((unsigned char)whole->text.data[at - 1]) &&
           !ranges_meet(&whole->content, at - 1, at))
        at--;
    return at > start && !ranges_meet(&whole->content, at - 1, at) ? at : end;
}

/* The place in from … to with most of `before`'s end behind `from` and before it, the last of
 * several; SIZE_MAX: none has any. */
static size_t best_place(const struct buf *whole, const struct buf *before, size_t from, size_t to)
{
    size_t best = SIZE_MAX, n_best = 1;
    for (size_t at = from; at <= to; at++) {
        const size_t n_max = at - from < MATCH_MAX ? at - from : MATCH_MAX;
        const size_t n = same_before(whole, at, before, n_max);
        if (n >= n_best) {
            best = at;
            n_best = n;
        }
    }
    return best;
}

/* The last place in from … to behind the n bytes that end `before`; none: `to`, and with n = 0 the
 * white space before it that `before` does not end with. */
static size_t behind_header(const struct buf *whole, const struct buf *before, size_t n,
                            struct byte_range in)
{
    size_t at = in.end;
    if (n == 0) {
        while (at > in.start && isspace((unsigned char)whole->data[at - 1]) &&
               !same_before(whole, at, before, 1))
            at--;
        return same_before(whole, at, before, 1) ? at : in.end;
    }
    for (; at >= in.start + n; at--)
        if (same_before(whole, at, before, n) == n)
            return at;
    return in.end;
}

/* A tag that only begins alike ("<" of "<think>" and of "<tool_call>") is not before the answer. */
static size_t before_tag(const struct buf *b, size_t at, size_t from)
{
    for (size_t i = at; i > from; i--) {
        if (b->data[i - 1] == '<')
            return i - 1;
        if (strchr("> \n", b->data[i - 1]))
            break;
    }
    return at;
}

static enum q_code find_start(const struct conversation *c, size_t i, size_t from, size_t *start,
                              struct q_err *e)
{
    const struct buf *whole = &c->whole.text;
    struct rendered asked = {.text = BUF_INIT}, before = {.text = BUF_INIT};
    bool has_asked = false, has_before = false;
    size_t bound = 0, same = 0;
    enum q_code rc = render_first(c, i, true, &asked, &has_asked, e);
    if (rc || (has_asked && (same = common_prefix(whole, &asked.text)) == asked.text.len))
        goto out;
    if ((rc = render_first(c, i, false, &before, &has_before, e)))
        goto out;
    if (has_asked && has_before && same >= before.text.len &&
        common_prefix(&before.text, whole) == before.text.len) {
        same = before_tag(whole, same, before.text.len); /* the answer begins otherwise */
        goto out;
    }
    if ((rc = find_bound(c, i, &bound, e)))
        goto out;
    same = bound;
    if (has_asked && has_before && from <= bound &&
        common_prefix(&before.text, &asked.text) == before.text.len)
        same = behind_header(whole, &asked.text, asked.text.len - before.text.len,
                             (struct byte_range){from, bound});
out:
    *start = same > from ? same : from;
    rendered_release(&asked);
    rendered_release(&before);
    return rc;
}

static enum q_code find_end(const struct conversation *c, size_t i, size_t start, size_t *end,
                            struct q_err *e)
{
    const struct buf *whole = &c->whole.text;
    struct rendered upto = {.text = BUF_INIT};
    bool there = false;
    size_t bound = 0;
    enum q_code rc;
    *end = whole->len;
    if (i + 1 == json_array_size(c->messages))
        return Q_OK;
    if ((rc = render_first(c, i + 1, false, &upto, &there, e)))
        goto out;
    upto.text.len = without_space(&upto, 0, upto.text.len); /* the last of a text may have more */
    *end = upto.text.len;
    if (there && *end >= start && common_prefix(whole, &upto.text) == *end)
        goto out;
    *end = SIZE_MAX;
    if (!(rc = find_bound(c, i + 1, &bound, e)) && there && bound >= start)
        *end = best_place(whole, &upto.text, start, bound);
    if (!rc && *end == SIZE_MAX)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "messages: entry %zu: where the chat template ends this answer cannot be told; "
                    "a template with {%% generation %%} blocks says it",
                    i);
out:
    rendered_release(&upto);
    return rc;
}

/* ---- which messages count ---- */

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

static enum q_code read_weight(bool *counts, const json_t *message, size_t i, struct q_err *e)
{
    const json_t *weight = json_object_get(message, "weight");
    *counts = is_answer(message);
    if (!*counts || !weight || json_is_null(weight))
        return Q_OK;
    const double value = json_number_value(weight);
    if (!json_is_number(weight) || (value != 0 && value != 1))
        return q_fail(e, Q_INVALID, "messages: entry %zu: weight: expected 0 or 1", i);
    *counts = value == 1;
    return Q_OK;
}

/* The blocks that {% generation %} marks, without those of messages that do not count. */
static enum q_code take_generated(struct conversation *c, struct q_err *e)
{
    const struct ranges *g = &c->whole.generated;
    size_t i, k = 0, n_answer = 0, n_counts = 0;
    json_t *m;
    bool counts;
    enum q_code rc = Q_OK;
    json_array_foreach (c->messages, i, m) {
        if ((rc = read_weight(&counts, m, i, e)))
            return rc;
        n_answer += is_answer(m);
        n_counts += counts;
    }
    if (n_counts < n_answer && n_answer != g->n)
        return q_fail(e, Q_UNSUPPORTED,
                      "messages: a weight of 0 needs a template with one {%% generation %%} block "
                      "an answer; it has %zu for %zu",
                      g->n, n_answer);
    json_array_foreach (c->messages, i, m) {
        if (n_counts == n_answer || !is_answer(m))
            continue;
        if (!(rc = read_weight(&counts, m, i, e)) && counts)
            rc = ranges_add(&c->spans, g->at[k].start, g->at[k].end, e);
        if (rc)
            return rc;
        k++;
    }
    for (k = 0; k < g->n && n_counts == n_answer && !rc; k++)
        rc = ranges_add(&c->spans, g->at[k].start, g->at[k].end, e);
    return rc;
}

static enum q_code find_spans(struct conversation *c, struct q_err *e)
{
    size_t i, from = 0, start = 0, end = 0;
    json_t *m;
    bool counts;
    enum q_code rc = Q_OK;
    json_array_foreach (c->messages, i, m) {
        if ((rc = read_weight(&counts, m, i, e)))
            return rc;
        if (!is_answer(m))
            continue;
        if ((rc = find_start(c, i, from, &start, e)) || (rc = find_end(c, i, start, &end, e)))
            return rc;
        start = char_start(&c->whole.text, start);
        end = char_start(&c->whole.text, end);
        from = end > from ? end : from;
        if (counts && start < end &&
            (rc = ranges_add(&c->spans, start, without_space(&c->whole, start, end), e)))
            return rc;
    }
    return Q_OK;
}

/* ---- to tokens ---- */

static enum q_code encode(struct sample_tokens *out, const struct tokenizer *t,
                          const struct conversation *c, struct q_err *e)
{
    const struct tokenizer_text text = {
        .data = c->whole.text.data,
        .n = c->whole.text.len,
        .content = &c->whole.content,
    };
    struct token_marks marks = {q_calloc(2 * c->spans.n + 1, sizeof *marks.items), 2 * c->spans.n};
    size_t done = 0;
    enum q_code rc;
    if (!marks.items)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    for (size_t i = 0; i < c->spans.n; i++) {
        marks.items[2 * i].at = c->spans.at[i].start;
        marks.items[2 * i + 1].at = c->spans.at[i].end;
    }
    rc = tokenizer_encode_marked(t, &text, &marks, &out->ids, e);
    for (size_t i = 0; i < c->spans.n && !rc; i++) {
        const struct token_mark *end = &marks.items[2 * i + 1];
        const size_t first = marks.items[2 * i].n_before;
        const size_t after = end->n_before + end->crosses;
        if (after > done)
            rc = ranges_add(&out->counted, first > done ? first : done, after, e);
        done = after > done ? after : done;
    }
    q_free(marks.items);
    return rc;
}

/* What a server forgives in a history would be taught here. */
static enum q_code check_calls(const json_t *messages, struct q_err *e)
{
    size_t i, k;
    json_t *m, *call;
    json_array_foreach ((json_t *)(uintptr_t)messages, i, m)
        json_array_foreach (json_object_get(m, "tool_calls"), k, call) {
            const json_t *arguments =
                json_object_get(json_object_get(call, "function"), "arguments");
            json_t *value = NULL;
            if (!json_is_string(arguments) || json_string_length(arguments) == 0)
                continue;
            if (json_body(&value, json_string_value(arguments), json_string_length(arguments), e))
                return q_fail(e, Q_INVALID,
                              "messages: entry %zu: tool call %zu: arguments are no JSON object", i,
                              k);
            json_decref(value);
        }
    return Q_OK;
}

static enum q_code read_line(struct conversation *c, const json_t *line, struct q_err *e)
{
    const json_t *messages = json_object_get(line, "messages");
    const json_t *tools = json_object_get(line, "tools");
    const json_t *kwargs = json_object_get(line, "chat_template_kwargs");
    const struct chat_model model = {.template = (struct chat *)(uintptr_t)c->chat};
    enum q_code rc;
    if (!json_is_array(messages))
        return q_fail(e, Q_INVALID, "messages: expected an array, got %s", json_kind(messages));
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return q_fail(e, Q_INVALID, "tools: expected an array, got %s", json_kind(tools));
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return q_fail(e, Q_INVALID, "chat_template_kwargs: expected an object, got %s",
                      json_kind(kwargs));
    c->kwargs = json_is_object(kwargs) ? kwargs : NULL;
    if ((rc = roles_check(&model, NULL, messages, e)) || (rc = check_calls(messages, e)) ||
        (rc = tools_read(&c->tools, tools, e)))
        return rc;
    return messages_read(&c->messages, messages, NULL, e);
}

enum q_code sample_chat_read(struct sample_tokens *out, const struct sample_source *source,
                             const json_t *line, struct q_err *e)
{
    struct conversation c = {.chat = source->chat, .whole = {.text = BUF_INIT}};
    enum q_code rc;
    if (!c.chat)
        return q_fail(e, Q_UNSUPPORTED, "messages: %s", source->chat_error);
    if ((rc = read_line(&c, line, e)) || (rc = render(&c, c.messages, false, &c.whole, e)))
        goto out;
    rc = chat_marks_generation(c.chat, c.tools != NULL) ? take_generated(&c, e) : find_spans(&c, e);
    if (!rc)
        rc = encode(out, source->tokenizer, &c, e);
out:
    rendered_release(&c.whole);
    ranges_release(&c.spans);
    json_decref(c.messages);
    json_decref(c.tools);
    return rc;
}
