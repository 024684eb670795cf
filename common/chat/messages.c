/* SPDX-License-Identifier: Apache-2.0 */
/* Templates expect the messages of transformers, and requests have those of OpenAI. This file
 * converts a copy of the messages: content becomes one string, or a list of parts where it has
 * images; a refusal becomes content, and the arguments of a tool call become an object. OpenAI's
 * older form of calls (function_call, and role "function" for the result), which templates do not
 * support, is converted to the newer form. Results keep the order of the request, as in vLLM; only
 * mistral-common's format sorts them by the calls (common/template/mistral.c). */
#include "common/chat/messages.h"
#include <stdbool.h>
#include <string.h>
#include "common/buf.h"
#include "common/chat/json.h"
#include "common/log.h"
#include "common/mem.h"

#define MESSAGES_MAX 16384
#define TOOLS_MAX    1024
#define NAME_MAX_LEN 256
#define ID_BYTES     10 /* "call" and five digits: nine letters and digits, as Mistral wants them */

struct reader {
    struct parts *parts;
    size_t i;          /* the message's place */
    char id[ID_BYTES]; /* of the last function_call, until its result has come; "" = none */
};

/* The parts that are text, by type, and the member that holds it. */
static const char *const text_parts[][2] = {
    {"text", "text"},       {"input_text", "text"},   {"output_text", "text"},
    {"refusal", "refusal"}, {"thinking", "thinking"},
};
#define N_TEXT_PART (sizeof text_parts / sizeof *text_parts)

/* The member with the text of a part of this type; NULL: it is not text. */
static const char *text_member(const char *type)
{
    for (size_t k = 0; type && k < N_TEXT_PART; k++)
        if (strcmp(type, text_parts[k][0]) == 0)
            return text_parts[k][1];
    return type ? NULL : "text";
}

struct content {                      /* of a message, as its parts are read */
    json_t *list;                     /* of {"type": "text", "text": …} and {"type": "image"} */
    struct buf text;                  /* of the part that the list does not have yet */
    enum { NO_TEXT, TEXT, MARK } end; /* what that part ends with; NO_TEXT: there is none */
    bool has_image;
};

static FALLIBLE append(struct content *c, json_t *part, struct q_err *e)
{
    return json_array_append_new(c->list, part) ? q_fail(e, Q_NO_MEMORY, "messages: out of memory")
                                                : Q_OK;
}

static FALLIBLE end_text(struct content *c, struct q_err *e)
{
    if (c->end == NO_TEXT)
        return Q_OK;
    enum q_code rc = buf_check(&c->text, "messages: a text of the content", e);
    if (!rc)
        rc = append(c,
                    json_pack("{s:s,s:o}", "type", "text", "text",
                              json_stringn_nocheck(buf_str(&c->text), c->text.len)),
                    e);
    c->text.len = 0;
    c->end = NO_TEXT;
    return rc;
}

/* An image is a part of the list; a mark is text, and goes on with the text beside it. */
static FALLIBLE add_items(struct content *c, const struct reader *r, const struct item_type *type,
                          const struct part_place *at, const json_t *part, struct q_err *e)
{
    Q_ASSERT(r->parts); /* which has the type */
    const bool is_image = item_type_is_image(type);
    const size_t first = r->parts->list.n;
    enum q_code rc = parts_add(r->parts, type, part, at, is_image ? NULL : &c->text, e);
    if (rc || !is_image) {
        c->end = MARK;
        return rc;
    }
    rc = end_text(c, e);
    c->has_image = true;
    for (size_t i = first; i < r->parts->list.n && !rc; i++)
        rc = append(c, json_pack("{s:s}", "type", "image"), e);
    return rc;
}

static FALLIBLE add_part(struct content *c, const struct reader *r, const struct part_place *at,
                         const json_t *part, struct q_err *e)
{
    const struct parts none = {.types = NULL}, *known = r->parts ? r->parts : &none;
    const char *type = json_string_value(json_object_get(part, "type")),
               *member = text_member(type);
    const json_t *t = json_is_string(part) || !member ? part : json_object_get(part, member);
    const struct item_type *found = member ? NULL : parts_type(known, type);
    enum q_code rc;
    if (found)
        return add_items(c, r, found, at, part, e);
    if (!member)
        return parts_no_type(known, type, at->i_message, e);
    if (!json_is_string(t))
        return q_fail(e, Q_INVALID, "messages: entry %zu: content part %zu has no \"%s\"",
                      at->i_message, at->i_part, member);
    if (c->end == TEXT && (rc = end_text(c, e)))
        return rc;
    buf_add(&c->text, json_string_value(t), json_string_length(t));
    c->end = TEXT;
    return Q_OK;
}

/* ["a", {"type":"text","text":"b"}] -> "a\nb", as vLLM does for templates that want strings.
 * *next: as of parts_mark_image. */
static FALLIBLE join(json_t *message, const json_t *list, const struct parts *p, size_t *next,
                     struct q_err *e)
{
    struct buf text = BUF_INIT;
    size_t i;
    json_t *part;
    json_array_foreach ((json_t *)list, i, part) {
        const json_t *t = json_object_get(part, "text");
        if (i)
            buf_add_char(&text, '\n');
        if (t)
            buf_add(&text, json_string_value(t), json_string_length(t));
        else
            parts_mark_image(p, next, &text);
    }
    enum q_code rc = buf_check(&text, "messages: the joined content", e);
    if (rc == Q_OK && json_object_set_new(message, "content",
                                          json_stringn_nocheck(buf_str(&text), text.len)) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    buf_release(&text);
    return rc;
}

static enum q_code read_parts(const struct reader *r, json_t *message, const json_t *parts,
                              struct q_err *e)
{
    struct part_place at = {
        .i_message = r->i,
        .role = json_string_value(json_object_get(message, "role")),
    };
    struct content c = {.list = json_array(), .text = BUF_INIT};
    enum q_code rc = Q_OK;
    json_t *part;
    json_array_foreach ((json_t *)parts, at.i_part, part)
        if ((rc = add_part(&c, r, &at, part, e)) != Q_OK)
            break;
    if (rc == Q_OK)
        rc = end_text(&c, e);
    if (rc == Q_OK && !c.has_image)
        rc = join(message, c.list, NULL, NULL, e);
    else if (rc == Q_OK && json_object_set(message, "content", c.list) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    json_decref(c.list);
    buf_release(&c.text);
    return rc;
}

FALLIBLE messages_join_images(json_t *messages, const struct parts *parts, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t i, next = 0;
    json_t *m;
    json_array_foreach (messages, i, m) {
        json_t *content = json_object_get(m, "content");
        if (!json_is_array(content))
            continue;
        json_incref(content);
        rc = join(m, content, parts, &next, e);
        json_decref(content);
        if (rc)
            break;
    }
    return rc;
}

/* A call's arguments are JSON text on the wire; templates print them with tojson and want the
 * value. What a model wrote wrong comes back in histories: it is {} to the template. */
static enum q_code open_arguments(json_t *call, size_t i_message, struct q_err *e)
{
    json_t *function = json_object_get(call, "function");
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")))
        return q_fail(e, Q_INVALID, "messages: entry %zu: a tool call has no function.name",
                      i_message);
    if (json_is_object(arguments))
        return Q_OK;
    struct q_err why = Q_ERR_INIT;
    json_t *value = NULL;
    const char *text = json_string_value(arguments);
    if (text && *text && json_body(&value, text, json_string_length(arguments), &why) != Q_OK)
        log_debug("messages: entry %zu: function.arguments are replaced by {}: %s", i_message,
                  why.message);
    else if (arguments && !text && !json_is_null(arguments))
        log_debug("messages: entry %zu: function.arguments are replaced by {}: they are %s",
                  i_message, json_kind(arguments));
    if (!value)
        value = json_object();
    if (json_object_set_new(function, "arguments", value) != 0)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    return Q_OK;
}

static enum q_code read_calls(json_t *message, size_t i_message, struct q_err *e)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls))
        return Q_OK;
    if (!json_is_array(calls))
        return q_fail(e, Q_INVALID, "messages: entry %zu: tool_calls: expected an array, got %s",
                      i_message, json_kind(calls));
    if (json_array_size(calls) == 0) { /* templates ask "is defined" */
        json_object_del(message, "tool_calls");
        return Q_OK;
    }
    json_t *copy = json_deep_copy(calls);
    if (!copy || json_object_set_new(message, "tool_calls", copy) != 0)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    for (size_t i = 0; i < json_array_size(copy); i++) {
        enum q_code rc = open_arguments(json_array_get(copy, i), i_message, e);
        if (rc != Q_OK)
            return rc;
    }
    return Q_OK;
}

/* An answer's function_call is its one call. */
static enum q_code modernize_call(struct reader *r, json_t *message, struct q_err *e)
{
    json_t *call = json_object_get(message, "function_call");
    if (json_array_size(json_object_get(message, "tool_calls")) || !call || json_is_null(call))
        return Q_OK;
    if (!json_is_string(json_object_get(call, "name")))
        return q_fail(e, Q_INVALID,
                      "messages: entry %zu: function_call: expected {\"name\": …, \"arguments\": "
                      "…}, got %s",
                      r->i, json_is_object(call) ? "an object without a name" : json_kind(call));
    snprintf(r->id, sizeof r->id, "call%05zu", r->i % 100000);
    json_t *calls = json_pack("[{s:s,s:s,s:O}]", "id", r->id, "type", "function", "function", call);
    if (!calls || json_object_set_new(message, "tool_calls", calls) != 0 ||
        json_object_del(message, "function_call") != 0)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    return Q_OK;
}

/* A function's result is a tool's. */
static enum q_code modernize_result(struct reader *r, json_t *message, struct q_err *e)
{
    int bad = json_object_set_new(message, "role", json_string("tool"));
    if (*r->id && !json_object_get(message, "tool_call_id"))
        bad |= json_object_set_new(message, "tool_call_id", json_string(r->id));
    *r->id = '\0';
    return bad ? q_fail(e, Q_NO_MEMORY, "messages: out of memory") : Q_OK;
}

static enum q_code modernize(struct reader *r, json_t *message, struct q_err *e)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content"),
           *refusal = json_object_get(message, "refusal");
    if (role && !strcmp(role, "function"))
        return modernize_result(r, message, e);
    if (!role || strcmp(role, "assistant") != 0)
        return Q_OK;
    *r->id = '\0';
    if ((!content || json_is_null(content)) && json_is_string(refusal) &&
        json_object_set(message, "content", refusal) != 0)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    return modernize_call(r, message, e);
}

static enum q_code read_message(struct reader *r, json_t *message, struct q_err *e)
{
    enum q_code rc = modernize(r, message, e);
    const size_t i = r->i;
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    if (rc)
        return rc;
    if (!role || !*role)
        return q_fail(e, Q_INVALID, "messages: entry %zu has no \"role\"", i);
    if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content))
        return q_fail(
            e, Q_INVALID,
            "messages: entry %zu: content: expected a string or an array of parts, got %s", i,
            json_kind(content));
    if (json_is_null(content) && !strcmp(role, "tool")) {
        if (json_object_set_new(message, "content", json_string("")) != 0) /* it gave nothing */
            return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
        return read_calls(message, i, e);
    }
    if ((!content || json_is_null(content)) && strcmp(role, "assistant") != 0)
        return q_fail(e, Q_INVALID, "messages: entry %zu: role \"%.40s\" requires \"content\"", i,
                      role);
    if (json_is_array(content))
        rc = read_parts(r, message, content, e);
    return rc != Q_OK ? rc : read_calls(message, i, e);
}

FALLIBLE messages_read(json_t **out, const json_t *messages, struct parts *parts, struct q_err *e)
{
    size_t i;
    json_t *m;
    struct reader r = {.parts = parts};
    const uint64_t n_failure = mem_failure_count();
    enum q_code rc = Q_OK;
    *out = NULL;
    if (!messages)
        return q_fail(e, Q_INVALID, "messages: the field is missing");
    if (json_array_size(messages) == 0 || json_array_size(messages) > MESSAGES_MAX)
        return q_fail(e, Q_INVALID, "messages: %zu entries, expected 1 to %d",
                      json_array_size(messages), MESSAGES_MAX);
    json_t *list = json_array();
    json_array_foreach ((json_t *)messages, i, m) {
        if (!json_is_object(m)) {
            rc = q_fail(e, Q_INVALID, "messages: entry %zu: expected an object, got %s", i,
                        json_kind(m));
            break;
        }
        json_t *copy = list ? json_copy(m) : NULL; /* shallow: only what is replaced differs */
        if (!copy || json_array_append_new(list, copy) != 0) {
            rc = q_fail(e, Q_NO_MEMORY, "out of memory for the messages");
            break;
        }
        r.i = i;
        if ((rc = read_message(&r, copy, e)) != Q_OK)
            break;
    }
    if (parts)
        parts_end(parts);
    rc = mem_check(n_failure, rc, "the messages", e);
    if (rc == Q_OK)
        *out = list;
    else
        json_decref(list);
    return rc;
}

static FALLIBLE check_tool(const json_t *tool, size_t i, struct q_err *e)
{
    const json_t *type = json_object_get(tool, "type"),
                 *function = json_object_get(tool, "function"),
                 *name = json_object_get(function, "name"),
                 *parameters = json_object_get(function, "parameters");
    const char *kind = json_string_value(type);
    if (!json_is_object(tool))
        return q_fail(e, Q_INVALID, "tools: entry %zu: expected an object, got %s", i,
                      json_kind(tool));
    if (type && !json_is_null(type) && (!kind || strcmp(kind, "function") != 0))
        return q_fail(e, kind ? Q_UNSUPPORTED : Q_INVALID,
                      "tools: entry %zu: unknown type \"%.40s\"; accepted is \"function\"", i,
                      kind ? kind : json_kind(type));
    if (!json_is_string(name) || json_string_length(name) == 0 ||
        json_string_length(name) > NAME_MAX_LEN)
        return q_fail(e, Q_INVALID,
                      "tools: entry %zu: function.name must be a string of 1 to %d bytes", i,
                      NAME_MAX_LEN);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return q_fail(e, Q_INVALID,
                      "tools: entry %zu: function.parameters: expected an object, got %s", i,
                      json_kind(parameters));
    return Q_OK;
}

/* The tool itself, or a copy that has the type. */
static json_t *with_type(json_t *tool)
{
    if (json_is_string(json_object_get(tool, "type")))
        return json_incref(tool);
    json_t *typed = json_pack("{s:s}", "type", "function");
    if (json_object_update_missing(typed, tool) == 0)
        return typed;
    json_decref(typed);
    return NULL;
}

FALLIBLE tools_read(json_t **out, const json_t *tools, struct q_err *e)
{
    size_t i;
    json_t *tool;
    enum q_code rc = Q_OK;
    *out = NULL;
    if (json_array_size(tools) == 0)
        return Q_OK;
    if (json_array_size(tools) > TOOLS_MAX)
        return q_fail(e, Q_INVALID, "tools: %zu entries, expected at most %d",
                      json_array_size(tools), TOOLS_MAX);
    json_t *list = json_array();
    json_array_foreach ((json_t *)tools, i, tool) {
        if ((rc = check_tool(tool, i, e)) != Q_OK)
            break;
        if (json_array_append_new(list, with_type(tool)) != 0) {
            rc = q_fail(e, Q_NO_MEMORY, "tools: out of memory");
            break;
        }
    }
    if (rc == Q_OK)
        *out = list;
    else
        json_decref(list);
    return rc;
}
