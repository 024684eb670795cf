/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/dialect_read.h"
#include <stdio.h>
#include <string.h>
#include "common/json_kind.h"

FALLIBLE dialect_no_memory(struct q_err *e)
{
    return q_fail(e, Q_NO_MEMORY, "out of memory for the request");
}

FALLIBLE dialect_set(json_t *object, const char *name, json_t *value, struct q_err *e)
{
    return json_object_set_new(object, name, value) ? dialect_no_memory(e) : Q_OK;
}

FALLIBLE dialect_set_given(json_t *object, const char *name, json_t *value, struct q_err *e)
{
    return !value || json_is_null(value) ? Q_OK : dialect_set(object, name, json_incref(value), e);
}

FALLIBLE dialect_message(struct dialect_turns *t, const char *role, json_t **message,
                         struct q_err *e)
{
    *message = json_pack("{ss}", "role", role);
    if (json_array_append_new(t->messages, *message) ||
        json_array_append_new(t->entries, json_integer(t->entry)))
        return dialect_no_memory(e);
    t->turn = strcmp(role, "assistant") ? NULL : *message;
    return Q_OK;
}

FALLIBLE dialect_content(struct dialect_turns *t, json_t *content, struct q_err *e)
{
    const size_t last = json_array_size(t->messages) - 1;
    if (json_array_set_new(t->entries, last, json_integer(t->entry)))
        return dialect_no_memory(e);
    return dialect_set(json_array_get(t->messages, last), "content", json_incref(content), e);
}

FALLIBLE dialect_reasoning(json_t *message, const struct buf *text, struct q_err *e)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    enum q_code rc = buf_check(text, "reasoning", e);
    for (size_t i = 0; i < 2 && !rc; i++)
        rc = dialect_set(message, names[i], json_stringn(buf_str(text), text->len), e);
    return rc;
}

FALLIBLE dialect_call(struct dialect_turns *t, json_t *id, json_t *name, json_t *arguments,
                      struct q_err *e)
{
    json_t *message = t->turn;
    enum q_code rc;
    if (!message && (rc = dialect_message(t, "assistant", &message, e)))
        return rc;
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls && (rc = dialect_set(message, "tool_calls", calls = json_array(), e)))
        return rc;
    json_t *call = json_pack("{sOsss{sOsO}}", "id", id, "type", "function", "function", "name",
                             name, "arguments", arguments);
    return json_array_append_new(calls, call) ? dialect_no_memory(e) : Q_OK;
}

FALLIBLE dialect_fill(json_t *messages, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t i;
    json_t *message;
    json_array_foreach (messages, i, message)
        if (!rc && !json_object_get(message, "content"))
            rc = dialect_set(message, "content", json_string(""), e);
    return rc;
}

FALLIBLE dialect_unknown(json_t *chat, const char *field, const json_t *object,
                         const char *const *names, struct q_err *e)
{
    const char *key;
    json_t *v;
    enum q_code rc;
    json_object_foreach ((json_t *)object, key, v) {
        char name[96];
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        snprintf(name, sizeof name, "%s.%.64s", field, key);
        if (!names[i] && !json_is_null(v) && (rc = dialect_set(chat, name, json_incref(v), e)))
            return rc;
    }
    return Q_OK;
}

/* Append a tool without members. *function: borrowed. */
static enum q_code add_tool(json_t *tools, json_t **function, struct q_err *e)
{
    *function = json_object();
    const int failed = json_array_append_new(
        tools, json_pack("{sssO}", "type", "function", "function", *function));
    json_decref(*function); /* the array has it */
    return failed ? dialect_no_memory(e) : Q_OK;
}

FALLIBLE dialect_tools_read(json_t *chat, const json_t *body, const struct dialect_tools *d,
                            struct q_err *e)
{
    const json_t *tools = json_object_get(body, "tools"), *tool;
    json_t *all, *function;
    enum q_code rc;
    size_t i;
    if (!tools || json_is_null(tools))
        return Q_OK;
    if (!json_is_array(tools))
        return q_fail(e, Q_INVALID, "tools: expected an array, got %s", json_kind(tools));
    if ((rc = dialect_set(chat, "tools", all = json_array(), e)))
        return rc;
    json_array_foreach ((json_t *)tools, i, tool) {
        if ((rc = d->check_type(i, json_object_get(tool, "type"), e)) ||
            (rc = add_tool(all, &function, e)) ||
            (rc = dialect_unknown(chat, "tools", tool, d->known, e)))
            return rc;
        for (size_t k = 0; k < d->n_member && !rc; k++)
            rc = dialect_set_given(function, d->members[k][1],
                                   json_object_get(tool, d->members[k][0]), e);
        if (rc)
            return rc;
    }
    return Q_OK;
}

FALLIBLE dialect_made(enum q_code rc, json_t *made, json_t *made_entries, json_t **chat,
                      json_t **entries)
{
    if (rc) {
        json_decref(made);
        json_decref(made_entries);
        return rc;
    }
    *chat = made;
    *entries = made_entries;
    return Q_OK;
}

bool dialect_is_of(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

const char *dialect_find(const char *const (*rows)[2], size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i][0], name))
            return rows[i][1];
    return NULL;
}

static enum q_code check_field(const struct dialect_fields *f, const char *name, struct q_err *e)
{
    for (size_t i = 0; i < f->n_not_here; i++) {
        const char *use = f->not_here[i][1];
        if (!strcmp(f->not_here[i][0], name))
            return q_fail(e, Q_INVALID, "%s: this endpoint does not accept this field%s%s", name,
                          use ? "; use " : "", use ? use : "");
    }
    return Q_OK;
}

FALLIBLE dialect_fields_read(json_t *chat, const json_t *body, const struct dialect_fields *f,
                             struct q_err *e)
{
    const char *key;
    json_t *v;
    enum q_code rc;
    json_object_foreach ((json_t *)body, key, v) {
        const char *why = dialect_find(f->refused, f->n_refused, key);
        const bool asks_nothing = json_is_false(v) || (json_is_array(v) && !json_array_size(v));
        if (json_is_null(v) || dialect_is_of(f->own, f->n_own, key) || (why && asks_nothing))
            continue;
        if (why)
            return q_fail(e, Q_UNSUPPORTED, "%s: not supported: %s", key, why);
        if ((rc = check_field(f, key, e)) || (rc = dialect_set(chat, key, json_incref(v), e)))
            return rc;
    }
    return Q_OK;
}
