/* SPDX-License-Identifier: Apache-2.0 */
/* The body of /v1/responses as the body of a chat completion.
 *
 * Items of the input become messages. Reasoning, text and calls of one turn are one message of the
 * assistant, as chat templates have it; the output of a call is a message of the tool. Fields that
 * both have go on as they are, unknown ones too: params.c knows and reports them. */
#include <string.h>
#include "common/json_kind.h"
#include "frontend/api/dialect_read.h"
#include "frontend/api/responses.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Fields of chat completions that are not of this endpoint, and what to use. */
static const char *const not_here[][2] = {
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"logprobs", "\"include\": [\"message.output_text.logprobs\"]"},
    DIALECT_NOT_HERE,
};

/* What needs responses that the server keeps, or tools that it runs. */
static const char *const not_kept[][2] = {
    {"previous_response_id", "responses are not kept; send the whole conversation in input"},
    {"conversation", "conversations are not kept; send the whole conversation in input"},
    {"prompt", "prompts are not kept; use instructions and input"},
    {"background", "responses are not kept; use \"stream\": true"},
    {"context_management", "the whole input is the prompt"},
    {"moderation", "no moderation model is served"},
    {"personality", "the model has no presets of style; use instructions"},
};

/* Read here, or without effect: they are not the chat's. */
static const char *const read_here[] = {
    "input",
    "instructions",
    "tools",
    "text",
    "reasoning",
    "max_output_tokens",
    "include",
    "truncation",
    "max_tool_calls",       /* counts calls of tools that the server runs: there are none */
    "image",                /* how a server compresses its copies of images */
    "access_programs",      /* what an account of OpenAI's may ask */
    "prompt_cache_options", /* the prefix cache needs no marks; prewarm is refused */
};

static const struct dialect_fields fields = {
    not_here, COUNT(not_here), not_kept, COUNT(not_kept), read_here, COUNT(read_here),
};

static const char *const included[] = {
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
};

/* ---- the input ---- */
static enum q_code wrong(const struct dialect_turns *t, const char *member, const char *expected,
                         const json_t *got, struct q_err *e)
{
    return q_fail(e, Q_INVALID, "input[%lld].%s: expected %s, got %s", (long long)t->entry, member,
                  expected, json_kind(got));
}

static bool has(const json_t *message, const char *name)
{
    return message && json_object_get(message, name);
}

/* The assistant's message that goes on with a part of this name, or a new one. */
static enum q_code turn_for(struct dialect_turns *t, const char *name, json_t **message,
                            struct q_err *e)
{
    const bool goes_on = t->turn && !has(t->turn, name) && !has(t->turn, "tool_calls");
    *message = t->turn;
    return goes_on ? Q_OK : dialect_message(t, "assistant", message, e);
}

static enum q_code read_message(struct dialect_turns *t, const json_t *item, struct q_err *e)
{
    const json_t *role = json_object_get(item, "role");
    json_t *content = json_object_get(item, "content"), *message;
    const char *name = json_string_value(role);
    enum q_code rc;
    if (!name)
        return wrong(t, "role", "a string", role, e);
    if (!json_is_string(content) && !json_is_array(content))
        return wrong(t, "content", "a string or an array of parts", content, e);
    rc = strcmp(name, "assistant") ? dialect_message(t, name, &message, e)
                                   : turn_for(t, "content", &message, e);
    return rc ? rc : dialect_content(t, content, e);
}

/* Text of {"type": …, "text": …} parts. */
static enum q_code add_texts(const struct dialect_turns *t, const json_t *parts, const char *member,
                             struct buf *text, struct q_err *e)
{
    size_t i;
    json_t *part;
    if (parts && !json_is_null(parts) && !json_is_array(parts))
        return wrong(t, member, "an array of parts", parts, e);
    json_array_foreach ((json_t *)parts, i, part) {
        const json_t *of = json_object_get(part, "text");
        if (!json_is_string(of))
            return wrong(t, member, "parts with a text", of ? of : part, e);
        if (text->len)
            buf_add_char(text, '\n');
        buf_add(text, json_string_value(of), json_string_length(of));
    }
    return Q_OK;
}

/* An item without its text (OpenAI's are encrypted) is left out. */
static enum q_code read_reasoning(struct dialect_turns *t, const json_t *item, struct q_err *e)
{
    struct buf text = BUF_INIT;
    json_t *message;
    enum q_code rc = add_texts(t, json_object_get(item, "content"), "content", &text, e);
    if (!rc && !text.len)
        rc = add_texts(t, json_object_get(item, "summary"), "summary", &text, e);
    if (!rc && text.len && !(rc = dialect_message(t, "assistant", &message, e)))
        rc = dialect_reasoning(message, &text, e);
    buf_release(&text);
    return rc;
}

static enum q_code read_call(struct dialect_turns *t, const json_t *item, struct q_err *e)
{
    static const char *const members[] = {"call_id", "name", "arguments"};
    json_t *values[COUNT(members)];
    for (size_t i = 0; i < COUNT(members); i++) {
        values[i] = json_object_get(item, members[i]);
        if (!json_is_string(values[i]))
            return wrong(t, members[i], "a string", values[i], e);
    }
    return dialect_call(t, values[0], values[1], values[2], e);
}

static enum q_code read_output(struct dialect_turns *t, const json_t *item, struct q_err *e)
{
    json_t *id = json_object_get(item, "call_id"), *output = json_object_get(item, "output"),
           *message;
    enum q_code rc;
    if (!json_is_string(id))
        return wrong(t, "call_id", "a string", id, e);
    if (!json_is_string(output) && !json_is_array(output))
        return wrong(t, "output", "a string or an array of parts", output, e);
    if ((rc = dialect_message(t, "tool", &message, e)) ||
        (rc = dialect_set(message, "tool_call_id", json_incref(id), e)))
        return rc;
    return dialect_content(t, output, e);
}

static enum q_code read_item(struct dialect_turns *t, const json_t *item, struct q_err *e)
{
    static const struct {
        const char *type;
        enum q_code (*read)(struct dialect_turns *t, const json_t *item, struct q_err *e);
    } kinds[] = {
        {"message", read_message},
        {"reasoning", read_reasoning},
        {"function_call", read_call},
        {"function_call_output", read_output},
    };
    const json_t *type = json_object_get(item, "type");
    const char *name = type ? json_string_value(type) : "message";
    if (!json_is_object(item))
        return q_fail(e, Q_INVALID, "input[%lld]: expected an object, got %s", (long long)t->entry,
                      json_kind(item));
    if (!name)
        return wrong(t, "type", "a string", type, e);
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (!strcmp(kinds[i].type, name))
            return kinds[i].read(t, item, e);
    return q_fail(e, Q_UNSUPPORTED,
                  "input[%lld].type: \"%.40s\" is not supported; accepted are message, reasoning, "
                  "function_call and function_call_output%s",
                  (long long)t->entry, name,
                  strcmp(name, "item_reference") ? "" : " (responses are not kept: send the item)");
}

static enum q_code read_instructions(struct dialect_turns *t, json_t *instructions, struct q_err *e)
{
    json_t *message;
    enum q_code rc;
    if (!instructions || json_is_null(instructions))
        return Q_OK;
    if (!json_is_string(instructions))
        return q_fail(e, Q_INVALID, "instructions: expected a string, got %s",
                      json_kind(instructions));
    t->entry = DIALECT_NO_ENTRY;
    rc = dialect_message(t, "system", &message, e);
    return rc ? rc : dialect_content(t, instructions, e);
}

static enum q_code read_input(struct dialect_turns *t, const json_t *body, struct q_err *e)
{
    json_t *input = json_object_get(body, "input"), *item, *message;
    enum q_code rc = read_instructions(t, json_object_get(body, "instructions"), e);
    size_t i;
    if (rc)
        return rc;
    if (json_is_string(input)) {
        t->entry = 0;
        rc = dialect_message(t, "user", &message, e);
        return rc ? rc : dialect_content(t, input, e);
    }
    if (!json_is_array(input))
        return q_fail(e, Q_INVALID, "input: expected a string or an array of items, got %s",
                      json_kind(input));
    json_array_foreach (input, i, item) {
        t->entry = (json_int_t)i;
        if ((rc = read_item(t, item, e)))
            return rc;
    }
    return dialect_fill(t->messages, e);
}

/* ---- tools, and the form of the answer ---- */
static enum q_code check_tool_type(size_t i, const json_t *type, struct q_err *e)
{
    const char *name = json_string_value(type);
    if (name && !strcmp(name, "function"))
        return Q_OK;
    return q_fail(e, name ? Q_UNSUPPORTED : Q_INVALID,
                  "tools[%zu].type: %s%.40s%s; accepted is \"function\"", i,
                  name ? "\"" : "expected a string, got ", name ? name : json_kind(type),
                  name ? "\" is not supported: no tool runs here" : "");
}

static const char *const tool_members[][2] = {
    {"name", "name"},
    {"description", "description"},
    {"parameters", "parameters"},
    {"strict", "strict"},
};

/* Those behind strict have no effect: all tools are in the prompt, only the model calls them, and
 * what they give is text. */
static const char *const tool_known[] = {
    "type",          "name",  "description",     "parameters",    "strict",
    "defer_loading", "async", "allowed_callers", "output_schema", NULL,
};

static const struct dialect_tools tools = {
    tool_members,
    COUNT(tool_members),
    tool_known,
    check_tool_type,
};

static enum q_code read_format(json_t *chat, json_t *format, struct q_err *e)
{
    static const char *const members[] = {"name", "description", "schema", "strict"};
    static const char *const known[] = {"type", "name", "description", "schema", "strict", NULL};
    const char *type = json_string_value(json_object_get(format, "type"));
    enum q_code rc;
    if (!type)
        return q_fail(e, Q_INVALID, "text.format: expected an object with a type, got %s",
                      json_kind(format));
    if (strcmp(type, "json_schema") != 0)
        return dialect_set(chat, "response_format", json_incref(format), e);
    json_t *schema = json_object();
    rc = dialect_unknown(chat, "text.format", format, known, e);
    for (size_t i = 0; i < COUNT(members) && !rc; i++)
        rc = dialect_set_given(schema, members[i], json_object_get(format, members[i]), e);
    if (!rc)
        rc = dialect_set(chat, "response_format",
                         json_pack("{sssO}", "type", "json_schema", "json_schema", schema), e);
    json_decref(schema);
    return rc;
}

static enum q_code read_text(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {"format", "verbosity", NULL};
    const json_t *text = json_object_get(body, "text");
    json_t *format = json_object_get(text, "format");
    enum q_code rc;
    if (!text || json_is_null(text))
        return Q_OK;
    if (!json_is_object(text))
        return q_fail(e, Q_INVALID, "text: expected an object, got %s", json_kind(text));
    if ((rc = dialect_unknown(chat, "text", text, known, e)) ||
        (rc = dialect_set_given(chat, "verbosity", json_object_get(text, "verbosity"), e)))
        return rc;
    return !format || json_is_null(format) ? Q_OK : read_format(chat, format, e);
}

static enum q_code read_include(json_t *chat, const json_t *body, struct q_err *e)
{
    const json_t *include = json_object_get(body, "include"), *name;
    bool logprobs = false;
    size_t i;
    if (include && !json_is_null(include) && !json_is_array(include))
        return q_fail(e, Q_INVALID, "include: expected an array, got %s", json_kind(include));
    json_array_foreach ((json_t *)include, i, name) {
        const char *s = json_string_value(name);
        if (!s || !dialect_is_of(included, COUNT(included), s))
            return q_fail(e, Q_INVALID, "include[%zu]: %s%.60s%s is unknown", i, s ? "\"" : "",
                          s ? s : json_kind(name), s ? "\"" : "");
        logprobs |= !strcmp(s, "message.output_text.logprobs");
    }
    const json_t *top = json_object_get(body, "top_logprobs");
    if (!logprobs && json_is_integer(top) && json_integer_value(top) > 0)
        return q_fail(e, Q_INVALID,
                      "top_logprobs: requires \"include\": [\"message.output_text.logprobs\"]");
    return logprobs ? dialect_set(chat, "logprobs", json_true(), e) : Q_OK;
}

/* A member that may only ask for what is done anyway. */
static enum q_code check_only(const json_t *object, const char *field, const char *member,
                              const char *only, const char *why, struct q_err *e)
{
    const json_t *v = json_object_get(object, member);
    const char *word = json_string_value(v);
    if (!v || json_is_null(v) || (word && !strcmp(word, only)))
        return Q_OK;
    return q_fail(e, word ? Q_UNSUPPORTED : Q_INVALID, "%s%s%s: accepted is \"%s\": %s", field,
                  *field ? "." : "", member, only, why);
}

/* summary: the reasoning itself is given, which is more. */
static enum q_code read_reasoning_options(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {
        "effort", "summary", "generate_summary", "context", "mode", NULL,
    };
    const json_t *reasoning = json_object_get(body, "reasoning");
    enum q_code rc;
    if (reasoning && !json_is_null(reasoning) && !json_is_object(reasoning))
        return q_fail(e, Q_INVALID, "reasoning: expected an object, got %s", json_kind(reasoning));
    if ((rc = dialect_unknown(chat, "reasoning", reasoning, known, e)) ||
        (rc = check_only(reasoning, "reasoning", "context", "auto",
                         "the chat template says which reasoning is in the prompt", e)) ||
        (rc = check_only(reasoning, "reasoning", "mode", "standard", "the model has no other", e)))
        return rc;
    return dialect_set_given(chat, "reasoning_effort", json_object_get(reasoning, "effort"), e);
}

static enum q_code read_cache_options(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {"mode", "ttl", "prewarm", "comparison_response_id", NULL};
    const json_t *options = json_object_get(body, "prompt_cache_options");
    if (options && !json_is_null(options) && !json_is_object(options))
        return q_fail(e, Q_INVALID, "prompt_cache_options: expected an object, got %s",
                      json_kind(options));
    if (json_is_true(json_object_get(options, "prewarm")))
        return q_fail(e, Q_UNSUPPORTED,
                      "prompt_cache_options.prewarm: not supported: an answer has at least one "
                      "token; use \"max_output_tokens\": 1");
    return dialect_unknown(chat, "prompt_cache_options", options, known, e);
}

static enum q_code read_rest(json_t *chat, const json_t *body, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_only(body, "", "truncation", "disabled", "an input that is too long is refused",
                         e)) ||
        (rc = read_reasoning_options(chat, body, e)) || (rc = read_cache_options(chat, body, e)))
        return rc;
    return dialect_set_given(chat, "max_completion_tokens",
                             json_object_get(body, "max_output_tokens"), e);
}

FALLIBLE responses_read(json_t **chat, json_t **entries, const json_t *body, struct q_err *e)
{
    struct dialect_turns t = {.messages = json_array(), .entries = json_array()};
    json_t *made = json_object();
    enum q_code rc = dialect_set(made, "messages", t.messages, e);
    if (!rc && !(rc = dialect_fields_read(made, body, &fields, e)) &&
        !(rc = read_input(&t, body, e)) && !(rc = dialect_tools_read(made, body, &tools, e)) &&
        !(rc = read_text(made, body, e)) && !(rc = read_include(made, body, e)))
        rc = read_rest(made, body, e);
    return dialect_made(rc, made, t.entries, chat, entries);
}
