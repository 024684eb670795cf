/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/thinking.h"
#include <string.h>
#include "common/chat/json.h"
#include "common/json_read.h"

/* What templates call their switch. A value is JSON; NULL: the template has none for it. An effort
 * is a switch only where the source knows the text "none": that of gpt-oss cannot be none. */
static const struct {
    const char *variable, *on, *off;
    bool knows_none;
} switches[] = {
    {"enable_thinking", "true", "false", false},
    {"thinking", "true", "false", false},
    {"thinking_budget", NULL, "0", false},
    {"reasoning_effort", "\"high\"", "\"none\"", true},
};
#define N_SWITCH (sizeof switches / sizeof *switches)

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Is there a variable of this name in the source? Members (message.thinking) and texts
 * ("thinking") are none. */
static bool has_variable(const char *source, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = strstr(source, name); at; at = strstr(at + n, name)) {
        char before = at > source ? at[-1] : ' ';
        if (!is_word(before) && !strchr(".'\"`<[|/", before) && !is_word(at[n]) &&
            !strchr("'\">]", at[n] ? at[n] : ' '))
            return true;
    }
    return false;
}

static bool has_switch(const char *source, size_t i)
{
    return has_variable(source, switches[i].variable) &&
           (!switches[i].knows_none || strstr(source, "'none'") || strstr(source, "\"none\""));
}

/* true, false, {"type": "enabled"}, {"type": "disabled"}, and the words for these. */
static bool read_value(enum thinking *out, const json_t *v)
{
    static const struct {
        const char *word;
        enum thinking is;
    } words[] = {
        {"enabled", THINKING_ON},      {"disabled", THINKING_OFF}, {"on", THINKING_ON},
        {"off", THINKING_OFF},         {"true", THINKING_ON},      {"false", THINKING_OFF},
        {"adaptive", THINKING_UNSAID}, {"auto", THINKING_UNSAID},
    };
    const json_t *type = json_is_object(v) ? json_object_get(v, "type") : v;
    const char *word = json_string_value(type);
    if (json_is_boolean(v)) {
        *out = json_is_true(v) ? THINKING_ON : THINKING_OFF;
        return true;
    }
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word)) {
            *out = words[i].is;
            return true;
        }
    return false;
}

#define EFFORTS "none, minimal, low, medium, high, xhigh, max"

static FALLIBLE check_effort(const char *effort, struct q_err *e)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!effort || !strcmp(known[i], effort))
            return Q_OK;
    return q_fail(e, Q_INVALID,
                  "reasoning_effort: unknown value \"%.40s\"; accepted are " EFFORTS
                  " (other values of the model's chat template can be set in chat_template_kwargs)",
                  effort);
}

FALLIBLE thinking_read(enum thinking *out, const struct turn_ask *a, struct q_err *e)
{
    if (check_effort(a->reasoning_effort, e) != Q_OK)
        return e->code;
    const struct {
        const char *name;
        const json_t *value;
    } fields[] = {{"enable_thinking", a->enable_thinking}, {"thinking", a->thinking}};
    const char *effort = a->reasoning_effort;
    *out = !effort ? THINKING_UNSAID : strcmp(effort, "none") ? THINKING_ON : THINKING_OFF;
    for (size_t i = 2; i-- > 0;) /* the first goes before the second */
        if (fields[i].value && !read_value(out, fields[i].value))
            return q_fail(e, Q_INVALID,
                          "%s: expected true, false or {\"type\": \"enabled\" or \"disabled\"}, "
                          "got %s",
                          fields[i].name,
                          json_is_object(fields[i].value) ? "another object"
                                                          : json_kind(fields[i].value));
    for (size_t i = 2; i-- > 0;) /* there another value is the template's matter, and no error */
        read_value(out, json_object_get(a->chat_template_kwargs, fields[i].name));
    return Q_OK;
}

/* Set a variable that chat_template_kwargs does not have. */
static int set_missing(json_t *kwargs, const char *name, json_t *value)
{
    if (json_object_get(kwargs, name)) {
        json_decref(value);
        return 0;
    }
    return json_object_set_new(kwargs, name, value);
}

FALLIBLE thinking_kwargs(json_t **out, const struct turn_ask *a, const char *source,
                         struct q_err *e)
{
    enum thinking asked = THINKING_UNSAID;
    enum q_code rc = thinking_read(&asked, a, e);
    *out = NULL;
    if (rc != Q_OK)
        return rc;
    json_t *kwargs = a->chat_template_kwargs
                         ? json_copy((json_t *)(uintptr_t)a->chat_template_kwargs)
                         : json_object();
    bool failed = !kwargs;
    if (a->reasoning_effort && !failed) /* where vLLM puts it */
        failed = json_object_set_new(kwargs, "reasoning_effort", json_string(a->reasoning_effort));
    for (size_t i = 0; i < N_SWITCH && !failed; i++) {
        const char *value = asked == THINKING_ON    ? switches[i].on
                            : asked == THINKING_OFF ? switches[i].off
                                                    : NULL;
        if (value && has_switch(source, i))
            failed = set_missing(kwargs, switches[i].variable,
                                 json_read_string(value, JSON_DECODE_ANY, NULL));
    }
    if (!failed) {
        *out = kwargs;
        return Q_OK;
    }
    json_decref(kwargs);
    return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
}

static bool is_bracketed(const struct buf *text)
{
    static const char *const brackets[][2] = {{"<", ">"}, {"[", "]"}, {"◁", "▷"}};
    for (size_t k = 0; k < sizeof brackets / sizeof *brackets; k++) {
        size_t n_open = strlen(brackets[k][0]), n_close = strlen(brackets[k][1]);
        if (text->len > n_open + n_close && !memcmp(text->data, brackets[k][0], n_open) &&
            !memcmp(text->data + text->len - n_close, brackets[k][1], n_close))
            return true;
    }
    return false;
}

/* Append the tag with marks around its special tokens; false: none of its tokens is a tag. */
static bool add_marked(struct buf *out, const struct tokenizer *t, const char *tag)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf text = BUF_INIT;
    struct q_err ignored = Q_ERR_INIT;
    bool found = false;
    enum q_code rc = tokenizer_encode(t, tag, strlen(tag), false, &ids, &ignored);
    for (size_t i = 0; rc == Q_OK && i < ids.n; i++) {
        buf_reset(&text);
        rc = tokenizer_decode(t, &ids.ids[i], 1, false, &text, &ignored);
        const char *at = is_bracketed(&text) ? strstr(tag, buf_str(&text)) : NULL;
        if (!at)
            continue;
        bool special = tokenizer_is_special(t, ids.ids[i]);
        found = true;
        buf_add(out, tag, (size_t)(at - tag));
        buf_add(out, "\xff", special);
        buf_add(out, buf_str(&text), text.len);
        buf_add(out, "\xff", special);
        tag = at + text.len;
    }
    buf_add(out, tag, strlen(tag) + 1);
    buf_release(&text);
    token_list_release(&ids);
    return found;
}

FALLIBLE thinking_tags(struct buf *out, const struct tokenizer *t,
                       const struct parser_before *before, struct q_err *e)
{
    const char *limit = before->tags + before->n_tags;
    for (const char *start = before->tags; start < limit;) {
        const char *end = start + strlen(start) + 1;
        size_t n = out->len;
        if (add_marked(out, t, start))
            buf_add(out, end, strlen(end) + 1);
        else if (!out->failed)
            out->len = n;
        start = end + strlen(end) + 1;
    }
    return buf_check(out, "the tags of reasoning", e);
}
