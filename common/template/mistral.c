/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template/mistral.h"
#include <stdbool.h>
#include <string.h>
#include "common/buf.h"
#include "common/json_read.h"

#define BETWEEN "\n\n" /* parts of one message, messages that become one */
#define ID_MAX  9      /* characters of a tool call's id, before v13 */

/* ---- templates ---- */

#define BEGIN                                                                                 \
    "{{- '<s>' -}}\n"                                                                         \
    "{%- macro parts(list) -%}\n"                                                             \
    "{%- for part in list -%}\n"                                                              \
    "{{- part.text if part.text is defined else '[THINK]' ~ part.thinking ~ '[/THINK]' -}}\n" \
    "{%- endfor -%}\n"                                                                        \
    "{%- endmacro -%}\n"                                                                      \
    "{%- for m in messages -%}\n"                                                             \
    "{%- if m.role == 'user' -%}\n"                                                           \
    "{%- if m.tools and tools -%}\n"                                                          \
    "{{- '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' -}}\n"                 \
    "{%- endif -%}\n"                                                                         \
    "{{- '[INST]' ~ parts(m.content) ~ '[/INST]' -}}\n"                                       \
    "{%- elif m.role == 'system' -%}\n"                                                       \
    "{{- '[SYSTEM_PROMPT]' ~ parts(m.content) ~ '[/SYSTEM_PROMPT]' -}}\n"                     \
    "{%- elif m.role == 'tool' -%}\n"
#define ANSWER                   \
    "{%- else -%}\n"             \
    "{{- parts(m.content) -}}\n" \
    "{%- if m.calls -%}\n"
#define END            \
    "{%- endif -%}\n"  \
    "{{- '</s>' -}}\n" \
    "{%- endif -%}\n"  \
    "{%- endfor -%}\n"

#define RESULT_JSON                                                               \
    "{{- '[TOOL_RESULTS]' ~ ({'content': m.result, 'call_id': m.id} | tojson) ~ " \
    "'[/TOOL_RESULTS]' -}}\n"
#define RESULT_ID \
    "{{- '[TOOL_RESULTS]' ~ m.id ~ '[TOOL_CONTENT]' ~ parts(m.content) ~ '[/TOOL_RESULTS]' -}}\n"
#define RESULT     "{{- '[TOOL_RESULTS]' ~ parts(m.content) ~ '[/TOOL_RESULTS]' -}}\n"
#define CALLS_JSON "{{- '[TOOL_CALLS]' ~ (m.calls | tojson) -}}\n"
#define CALLS(id)                                                                       \
    "{%- for call in m.calls -%}\n"                                                     \
    "{{- '[TOOL_CALLS]' ~ call.name ~ " id "'[ARGS]' ~ (call.arguments | tojson) -}}\n" \
    "{%- endfor -%}\n"

static const struct {
    uint32_t version;
    const char *text;
} templates[] = {
    {3, BEGIN RESULT_JSON ANSWER CALLS_JSON END},
    {7, BEGIN RESULT_ID ANSWER CALLS_JSON END},
    {11, BEGIN RESULT_ID ANSWER CALLS("('[CALL_ID]' ~ call.id if call.id else '') ~ ") END},
    {13, BEGIN RESULT ANSWER CALLS("") END},
};

const char *mistral_template(uint32_t version)
{
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (templates[i].version == version)
            return templates[i].text;
    return NULL;
}

/* ---- contents ---- */

static enum q_code no_memory(struct q_err *e)
{
    return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
}

/* {key: value}, which takes over the value even when it fails (json_pack would not). */
static json_t *object_with(const char *key, json_t *value)
{
    json_t *o = json_object();
    if (json_object_set_new(o, key, value) == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* Put a text behind the parts: into the last one if that is a text too. */
static enum q_code add_text(json_t *parts, const char *text, size_t n, struct q_err *e)
{
    size_t n_part = json_array_size(parts);
    json_t *last = json_array_get(parts, n_part - 1), *before = json_object_get(last, "text");
    struct buf joined = BUF_INIT;
    if (n == 0)
        return Q_OK;
    if (before) {
        buf_add(&joined, json_string_value(before), json_string_length(before));
        buf_add_str(&joined, BETWEEN);
    }
    buf_add(&joined, text, n);
    json_t *made = joined.failed ? NULL : json_stringn(buf_str(&joined), joined.len);
    int bad = before ? json_object_set_new(last, "text", made)
                     : json_array_append_new(parts, object_with("text", made));
    buf_release(&joined);
    return bad || !made ? no_memory(e) : Q_OK;
}

/* A message while it is read: which it is, what it may hold. */
struct reading {
    size_t i; /* of the request's messages */
    const char *role;
    uint32_t version;
};

static enum q_code add_part(json_t *parts, const json_t *part, const struct reading *r,
                            struct q_err *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text"),
                 *thinking = json_object_get(part, "thinking");
    bool thinks =
        r->version >= 13 && (strcmp(r->role, "assistant") == 0 || !strcmp(r->role, "system"));
    if (json_is_string(part))
        text = part;
    if (json_is_string(text) && (!type || strcmp(type, "text") == 0))
        return add_text(parts, json_string_value(text), json_string_length(text), e);
    if (type && strcmp(type, "thinking") == 0 && json_is_string(thinking) && thinks)
        return json_array_append_new(parts, json_pack("{s:O}", "thinking", thinking)) ? no_memory(e)
                                                                                      : Q_OK;
    return q_fail(e, Q_INVALID,
                  "messages: entry %zu: content of type \"%.40s\" of role %.20s cannot be rendered "
                  "in the format of tekken.json v%u; %s",
                  r->i, type ? type : "?", r->role, r->version,
                  thinks ? "text and thinking can" : "text can");
}

static enum q_code add_content(json_t *parts, const json_t *content, const struct reading *r,
                               struct q_err *e)
{
    size_t i;
    json_t *part;
    enum q_code rc = Q_OK;
    if (json_is_string(content))
        return add_text(parts, json_string_value(content), json_string_length(content), e);
    json_array_foreach ((json_t *)content, i, part)
        rc = rc ? rc : add_part(parts, part, r, e);
    return rc;
}

/* The text's JSON value; what is none stays a text; an empty one is {}. NULL: no memory. */
static json_t *value_of(const json_t *text)
{
    if (!json_is_string(text))
        return text && !json_is_null(text) ? json_incref((json_t *)text) : json_object();
    if (json_string_length(text) == 0)
        return json_object();
    json_error_t why;
    json_t *value = json_read_bytes(json_string_value(text), json_string_length(text),
                                    JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    bool text_it_is = !value && json_error_code(&why) != json_error_out_of_memory;
    return text_it_is ? json_incref((json_t *)text) : value;
}

/* *out: NULL when there is none. */
static enum q_code id_of(json_t **out, const json_t *id, uint32_t version, struct q_err *e)
{
    size_t n = json_string_length(id), cut = version < 13 && n > ID_MAX ? n - ID_MAX : 0;
    *out = NULL;
    if (n == 0 || strcmp(json_string_value(id), "null") == 0)
        return Q_OK;
    *out = json_stringn_nocheck(json_string_value(id) + cut, n - cut);
    return *out ? Q_OK : no_memory(e);
}

static enum q_code add_calls(json_t *calls, const json_t *from, const struct reading *r,
                             struct q_err *e)
{
    size_t i;
    json_t *call;
    json_array_foreach ((json_t *)from, i, call) {
        const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name");
        if (!json_is_string(name))
            return q_fail(e, Q_INVALID, "messages: entry %zu: tool call %zu has no function name",
                          r->i, i);
        json_t *one = object_with("name", json_incref((json_t *)name)), *id = NULL;
        enum q_code rc = id_of(&id, json_object_get(call, "id"), r->version, e);
        int bad = json_object_set_new(one, "arguments", value_of(json_object_get(f, "arguments")));
        if ((id && json_object_set_new(one, "id", id)) || bad)
            rc = rc ? rc : no_memory(e);
        if (rc) {
            json_decref(one);
            return rc;
        }
        if (json_array_append_new(calls, one))
            return no_memory(e);
    }
    return Q_OK;
}

/* ---- messages ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && strcmp(is, role) == 0;
}

/* A new message at the end of the list; NULL: no memory. Borrowed. */
static json_t *begin(json_t *list, const char *role)
{
    json_t *m = json_pack("{s:s, s:[], s:[]}", "role", role, "content", "calls");
    return m && json_array_append_new(list, m) == 0 ? m : NULL;
}

static enum q_code end_tool(json_t *made, const json_t *message, const struct reading *r,
                            struct q_err *e)
{
    json_t *id = NULL;
    enum q_code rc = id_of(&id, json_object_get(message, "tool_call_id"), r->version, e);
    if (rc)
        return rc;
    const json_t *text =
        json_object_get(json_array_get(json_object_get(made, "content"), 0), "text");
    if (!id)
        return q_fail(e, Q_INVALID, "messages: entry %zu: a tool's result needs \"tool_call_id\"",
                      r->i);
    int bad = json_object_set_new(made, "id", id);
    bad |= json_object_set_new(made, "result", value_of(text));
    return bad ? no_memory(e) : Q_OK;
}

static enum q_code add_message(json_t *list, const json_t *message, const struct reading *r,
                               struct q_err *e)
{
    json_t *made = json_array_get(list, json_array_size(list) - 1);
    const json_t *content = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    bool joins =
        (!strcmp(r->role, "user") || !strcmp(r->role, "assistant")) && has_role(made, r->role);
    enum q_code rc;
    if (!joins && !(made = begin(list, r->role)))
        return no_memory(e);
    if ((rc = add_content(json_object_get(made, "content"), content, r, e)) ||
        (rc = add_calls(json_object_get(made, "calls"), calls, r, e)))
        return rc;
    return strcmp(r->role, "tool") == 0 ? end_tool(made, message, r, e) : Q_OK;
}

/* An answer has something in it; one text loses the blanks at its end. */
static enum q_code end_answers(const json_t *list, uint32_t version, struct q_err *e)
{
    size_t i;
    json_t *m;
    json_array_foreach ((json_t *)list, i, m) {
        json_t *parts = json_object_get(m, "content"), *part = json_array_get(parts, 0);
        json_t *text = json_object_get(part, "text");
        size_t n = json_string_length(text), n_call = json_array_size(json_object_get(m, "calls"));
        if (!has_role(m, "assistant"))
            continue;
        if (json_array_size(parts) == 0 && n_call == 0)
            return q_fail(e, Q_INVALID,
                          "messages: an assistant's message has no text and no calls");
        if (version < 7 && n_call && json_array_size(parts))
            return q_fail(e, Q_INVALID,
                          "messages: an assistant's message has text and calls, which the format "
                          "of tekken.json v%u does not support",
                          version);
        while (n && json_string_value(text)[n - 1] == ' ')
            n--;
        if (text && json_array_size(parts) == 1 &&
            json_object_set_new(part, "text", json_stringn(json_string_value(text), n)))
            return no_memory(e);
    }
    return Q_OK;
}

/* Where among the calls the one with this id is; behind all of them if none has it. */
static size_t place_of(const json_t *calls, const json_t *result)
{
    const json_t *id = json_object_get(result, "id");
    size_t i;
    json_t *call;
    json_array_foreach ((json_t *)calls, i, call)
        if (json_equal(json_object_get(call, "id"), id))
            return i;
    return json_array_size(calls);
}

/* The results of an answer's calls in the calls' order. */
static enum q_code sort_results(json_t *list, struct q_err *e)
{
    const json_t *calls = NULL;
    size_t i, first = 0;
    json_t *m;
    json_array_foreach (list, i, m) {
        size_t to = i;
        if (!has_role(m, "tool")) {
            calls = json_object_get(m, "calls");
            first = i + 1;
            continue;
        }
        while (to > first && place_of(calls, json_array_get(list, to - 1)) > place_of(calls, m))
            to--;
        if (to == i)
            continue;
        json_incref(m);
        json_array_remove(list, i);
        if (json_array_insert_new(list, to, m))
            return no_memory(e);
    }
    return Q_OK;
}

/* v3 has no message of its own for the system's text: it stands in the last of the user. */
static enum q_code put_system(json_t *list, const json_t *system, struct q_err *e)
{
    const char *text = json_string_value(json_object_get(json_array_get(system, 0), "text"));
    json_t *m, *user = NULL;
    struct buf all = BUF_INIT;
    size_t i;
    if (!has_role(json_array_get(list, 0), "user") &&
        (!(m = json_pack("{s:s, s:[]}", "role", "user", "content")) ||
         json_array_insert_new(list, 0, m)))
        return no_memory(e);
    json_array_foreach (list, i, m)
        user = has_role(m, "user") ? m : user;
    if (!text)
        return Q_OK;
    const json_t *own =
        json_object_get(json_array_get(json_object_get(user, "content"), 0), "text");
    buf_add_str(&all, text);
    buf_add_str(&all, BETWEEN);
    buf_add(&all, own ? json_string_value(own) : "", json_string_length(own));
    json_t *part = all.failed ? NULL : object_with("text", json_stringn(buf_str(&all), all.len)),
           *content = json_array();
    int bad = json_array_append_new(content, part);
    buf_release(&all);
    return json_object_set_new(user, "content", content) || bad ? no_memory(e) : Q_OK;
}

static enum q_code read_message(json_t *list, json_t *system, const json_t *message,
                                const struct reading *r, struct q_err *e)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (r->role && strcmp(r->role, roles[i]) == 0)
            return i == 0 && r->version < 7
                       ? add_content(system, json_object_get(message, "content"), r, e)
                       : add_message(list, message, r, e);
    return q_fail(
        e, Q_INVALID,
        "messages: entry %zu: role \"%.40s\"; the format of tekken.json supports system, user, "
        "assistant and tool",
        r->i, r->role ? r->role : "");
}

/* Where the tools are shown: before the first message of the user, till v11 before the last one. */
static enum q_code mark_tools(json_t *list, uint32_t version, struct q_err *e)
{
    json_t *m, *user = NULL;
    size_t i;
    json_array_foreach (list, i, m)
        if (has_role(m, "user") && !(version >= 13 && user))
            user = m;
    return user && json_object_set_new(user, "tools", json_true()) ? no_memory(e) : Q_OK;
}

enum q_code mistral_messages(json_t **out, const json_t *messages, uint32_t version,
                             struct q_err *e)
{
    json_t *list = json_array(), *system = json_array(), *m;
    enum q_code rc = list && system ? Q_OK : no_memory(e);
    size_t i;
    json_array_foreach ((json_t *)messages, i, m) {
        const struct reading r = {i, json_string_value(json_object_get(m, "role")), version};
        rc = rc ? rc : read_message(list, system, m, &r, e);
    }
    if (!rc && version < 7)
        rc = put_system(list, system, e);
    if (!rc && version >= 11)
        rc = sort_results(list, e);
    if (!rc && !(rc = end_answers(list, version, e)))
        rc = mark_tools(list, version, e);
    json_decref(system);
    if (rc)
        json_decref(list);
    else
        *out = list;
    return rc;
}

/* One as {"type", "function": {"name", "description", "parameters"}}. */
static json_t *tool_of(const json_t *tool)
{
    json_t *f = json_object_get(tool, "function"), *made = json_object(), *outer = NULL;
    f = f ? f : (json_t *)tool;
    json_t *about = json_object_get(f, "description"),
           *parameters = json_object_get(f, "parameters");
    if ((!json_object_get(f, "name") ||
         json_object_set(made, "name", json_object_get(f, "name")) == 0) &&
        json_object_set_new(made, "description",
                            json_is_string(about) ? json_incref(about) : json_string("")) == 0 &&
        json_object_set_new(made, "parameters",
                            parameters ? json_incref(parameters) : json_object()) == 0 &&
        (outer = object_with("type", json_string("function"))) &&
        json_object_set(outer, "function", made) == 0) {
        json_decref(made);
        return outer;
    }
    json_decref(made);
    json_decref(outer);
    return NULL;
}

enum q_code mistral_tools(json_t **out, const json_t *tools, struct q_err *e)
{
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach ((json_t *)tools, i, tool)
        if (json_array_append_new(list, tool_of(tool))) {
            json_decref(list);
            return no_memory(e);
        }
    *out = list;
    return list ? Q_OK : no_memory(e);
}
