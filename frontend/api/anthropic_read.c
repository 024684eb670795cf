/* SPDX-License-Identifier: Apache-2.0 */
/* The body of /v1/messages as the body of a chat completion.
 *
 * A message of the assistant stays one message: its text, its thinking and its calls. Results of
 * tools are blocks of the user's message and become messages of the tool. If the last message is
 * the assistant's, the answer goes on with its text. */
#include <string.h>
#include "common/chat/thinking_words.h"
#include "common/json_kind.h"
#include "frontend/api/anthropic.h"
#include "frontend/api/dialect_read.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Fields of chat completions that are not of this endpoint, and what to use. */
static const char *const not_here[][2] = {
    {"max_completion_tokens", "max_tokens"},
    {"stop", "stop_sequences"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"thinking_token_budget", "thinking.budget_tokens"},
    {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"},
    {"logprobs", NULL},
    {"top_logprobs", NULL},
    {"stream_options", NULL},
    DIALECT_NOT_HERE,
};

/* What needs tools that the server runs, or conversations that it keeps. */
static const char *const not_kept[][2] = {
    {"mcp_servers", "no tool runs here"},
    {"container", "no tool runs here"},
    {"context_management", "the whole conversation is the prompt"},
    {"compaction", "the whole conversation is the prompt"},
    {"thread", "conversations are not kept; send all messages"},
};

/* Read here, or without effect: they are not the chat's. */
static const char *const read_here[] = {
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "tools",
    "tool_choice",
    "output_config",
    "output_format",
    "inference_geo",         /* the server is where it is */
    "cache_control",         /* the prefix cache needs no marks */
    "diagnostics",           /* asks what an earlier prompt had in common with this one */
    "speed",                 /* there is one */
    "fallbacks",             /* nothing is declined, so that no other model is asked */
    "fallback_credit_token", /* nothing is billed */
    "billing_policy",        /* likewise */
};

static const struct dialect_fields fields = {
    not_here, COUNT(not_here), not_kept, COUNT(not_kept), read_here, COUNT(read_here),
};

/* ---- the messages ---- */
static enum q_code wrong(const struct dialect_turns *t, const char *member, const char *expected,
                         const json_t *got, struct q_err *e)
{
    return q_fail(e, Q_INVALID, "messages.%lld.%s: expected %s, got %s", (long long)t->entry,
                  member, expected, json_kind(got));
}

/* Text, and what a plugin reads, goes on as a part of the message's content. */
static enum q_code add_part(json_t *message, json_t *block, struct q_err *e)
{
    json_t *content = json_object_get(message, "content");
    enum q_code rc;
    if (!content && (rc = dialect_set(message, "content", content = json_array(), e)))
        return rc;
    return json_array_append(content, block) ? dialect_no_memory(e) : Q_OK;
}

/* {"type": "tool_result", "tool_use_id": …, "content": …, "is_error": …}. Chat templates have no
 * place for is_error: the content says what failed. */
static enum q_code read_result(struct dialect_turns *t, const json_t *block, struct q_err *e)
{
    json_t *id = json_object_get(block, "tool_use_id"),
           *content = json_object_get(block, "content"), *message;
    const json_t *is_error = json_object_get(block, "is_error");
    enum q_code rc;
    if (is_error && !json_is_null(is_error) && !json_is_boolean(is_error))
        return wrong(t, "content: is_error of a tool_result", "a boolean", is_error, e);
    if (!json_is_string(id))
        return wrong(t, "content: tool_use_id", "a string", id, e);
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return wrong(t, "content: content of a tool_result", "a string or an array of blocks",
                     content, e);
    if ((rc = dialect_message(t, "tool", &message, e)) ||
        (rc = dialect_set(message, "tool_call_id", json_incref(id), e)))
        return rc;
    return dialect_set_given(message, "content", content, e);
}

/* The blocks of a user's message: results of tools, and messages of what is between them. */
static enum q_code read_user(struct dialect_turns *t, const char *role, const json_t *blocks,
                             struct q_err *e)
{
    json_t *block, *message = NULL;
    enum q_code rc = Q_OK;
    size_t i;
    json_array_foreach ((json_t *)blocks, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        if (type && !strcmp(type, "tool_result")) {
            message = NULL;
            rc = read_result(t, block, e);
        } else if (message || !(rc = dialect_message(t, role, &message, e))) {
            rc = add_part(message, block, e);
        }
        if (rc)
            return rc;
    }
    return Q_OK;
}

/* {"type": "tool_use", "id": …, "name": …, "input": {…}} */
static enum q_code read_use(struct dialect_turns *t, const json_t *block, struct q_err *e)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name))
        return wrong(t, "content: id and name of a tool_use", "strings",
                     json_is_string(id) ? name : id, e);
    if (!json_is_object(input))
        return wrong(t, "content: input of a tool_use", "an object", input, e);
    return dialect_call(t, id, name, input, e);
}

static enum q_code read_assistant(struct dialect_turns *t, const json_t *blocks, struct q_err *e)
{
    struct buf thought = BUF_INIT;
    json_t *block, *message;
    enum q_code rc = dialect_message(t, "assistant", &message, e);
    size_t i;
    json_array_foreach ((json_t *)blocks, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *text = json_object_get(block, "thinking");
        if (rc)
            break;
        if (type && !strcmp(type, "tool_use")) {
            rc = read_use(t, block, e);
        } else if (type && !strcmp(type, "thinking")) {
            if (!json_is_string(text))
                rc = wrong(t, "content: thinking", "a string", text, e);
            else
                buf_add(&thought, json_string_value(text), json_string_length(text));
        } else if (!type || strcmp(type, "redacted_thinking") != 0) {
            rc = add_part(message, block, e);
        }
    }
    if (!rc && thought.len)
        rc = dialect_reasoning(message, &thought, e);
    buf_release(&thought);
    return rc;
}

static enum q_code read_message(struct dialect_turns *t, const json_t *m, struct q_err *e)
{
    json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content"), *message;
    const char *name = json_string_value(role);
    enum q_code rc;
    if (!json_is_object(m))
        return q_fail(e, Q_INVALID, "messages.%lld: expected an object, got %s",
                      (long long)t->entry, json_kind(m));
    if (!name)
        return wrong(t, "role", "a string", role, e);
    if (json_is_string(content)) {
        rc = dialect_message(t, name, &message, e);
        return rc ? rc : dialect_content(t, content, e);
    }
    if (!json_is_array(content))
        return wrong(t, "content", "a string or an array of blocks", content, e);
    return strcmp(name, "assistant") ? read_user(t, name, content, e)
                                     : read_assistant(t, content, e);
}

/* The assistant's last message without calls is the beginning of the answer. */
static enum q_code go_on(json_t *chat, const struct dialect_turns *t, struct q_err *e)
{
    const json_t *last = t->turn;
    if (!last || json_object_get(last, "tool_calls") || !json_object_get(last, "content"))
        return Q_OK;
    return dialect_set(chat, "continue_final_message", json_true(), e);
}

static enum q_code read_system(struct dialect_turns *t, json_t *system, struct q_err *e)
{
    json_t *message;
    enum q_code rc;
    if (!system || json_is_null(system))
        return Q_OK;
    if (!json_is_string(system) && !json_is_array(system))
        return q_fail(e, Q_INVALID, "system: expected a string or an array of blocks, got %s",
                      json_kind(system));
    t->entry = DIALECT_NO_ENTRY;
    rc = dialect_message(t, "system", &message, e);
    return rc ? rc : dialect_content(t, system, e);
}

static enum q_code read_conversation(json_t *chat, struct dialect_turns *t, const json_t *body,
                                     struct q_err *e)
{
    const json_t *all = json_object_get(body, "messages"), *m;
    enum q_code rc;
    size_t i;
    if (!json_is_array(all))
        return q_fail(e, Q_INVALID, "messages: expected an array, got %s", json_kind(all));
    if ((rc = read_system(t, json_object_get(body, "system"), e)))
        return rc;
    json_array_foreach ((json_t *)all, i, m) {
        t->entry = (json_int_t)i;
        if ((rc = read_message(t, m, e)))
            return rc;
    }
    rc = go_on(chat, t, e);
    return rc ? rc : dialect_fill(t->messages, e);
}

/* ---- tools, and the rest ---- */
static enum q_code check_tool_type(size_t i, const json_t *type, struct q_err *e)
{
    const char *name = json_string_value(type);
    if (!type || json_is_null(type) || (name && !strcmp(name, "custom")))
        return Q_OK;
    return q_fail(e, name ? Q_UNSUPPORTED : Q_INVALID,
                  "tools.%zu.type: \"%.40s\" is not supported; accepted is \"custom\", with an "
                  "input_schema",
                  i, name ? name : json_kind(type));
}

static const char *const tool_members[][2] = {
    {"name", "name"},
    {"description", "description"},
    {"input_schema", "parameters"},
    {"strict", "strict"},
};

/* Those behind strict have no effect: the prefix cache needs no marks, all tools are in the prompt,
 * nothing but the model calls them, and arguments are always streamed as they are written. */
static const char *const tool_known[] = {
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "cache_control",
    "defer_loading",
    "input_examples",
    "allowed_callers",
    "eager_input_streaming",
    NULL,
};

static const struct dialect_tools tools = {
    tool_members,
    COUNT(tool_members),
    tool_known,
    check_tool_type,
};

/* {"type": "auto" | "any" | "tool" | "none", "name": …, "disable_parallel_tool_use": …} */
static enum q_code read_choice(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {"type", "name", "disable_parallel_tool_use", NULL};
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *word = type ? dialect_find(words, COUNT(words), type) : NULL;
    json_t *name = json_object_get(choice, "name");
    enum q_code rc;
    if (!choice || json_is_null(choice))
        return Q_OK;
    if (!word && (!type || strcmp(type, "tool") != 0 || !json_is_string(name)))
        return q_fail(e, Q_INVALID,
                      "tool_choice: accepted are {\"type\": \"auto\"}, any, none, and {\"type\": "
                      "\"tool\", \"name\": …}");
    if ((rc = dialect_unknown(chat, "tool_choice", choice, known, e)) ||
        (rc = dialect_set(
             chat, "tool_choice",
             word ? json_string(word)
                  : json_pack("{sss{sO}}", "type", "function", "function", "name", name),
             e)))
        return rc;
    if (!json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        return Q_OK;
    return dialect_set(chat, "parallel_tool_calls", json_false(), e);
}

/* {"type": "json_schema", "schema": …} */
static enum q_code read_format(json_t *chat, const char *field, const json_t *format,
                               struct q_err *e)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *schema = json_object_get(format, "schema");
    if (!format || json_is_null(format))
        return Q_OK;
    if (!type || strcmp(type, "json_schema") != 0 || !schema)
        return q_fail(e, Q_INVALID, "%s: expected {\"type\": \"json_schema\", \"schema\": …}",
                      field);
    return dialect_set(chat, "response_format",
                       json_pack("{sss{sssOsb}}", "type", "json_schema", "json_schema", "name",
                                 "output", "schema", schema, "strict", 1),
                       e);
}

/* budget_tokens, of thinking that is enabled. Anthropic's own API wants at least 1024 and less than
 * max_tokens; any number is a limit here. */
static enum q_code read_budget(json_t *chat, const json_t *thinking, struct q_err *e)
{
    const char *type = json_string_value(json_object_get(thinking, "type"));
    const json_t *budget = json_object_get(thinking, "budget_tokens");
    const json_int_t n = json_integer_value(budget);
    if (!budget || json_is_null(budget) || !type || strcmp(type, "enabled") != 0)
        return Q_OK;
    if (!json_is_integer(budget) || n < 0)
        return q_fail(e, Q_INVALID,
                      "thinking.budget_tokens: expected an integer of 0 or more, got %s",
                      json_is_integer(budget) ? "a negative number" : json_kind(budget));
    return dialect_set(chat, "thinking_token_budget",
                       json_integer(n < THINKING_TOKENS_MAX ? n : THINKING_TOKENS_MAX), e);
}

/* {"type": …, "budget_tokens": …, "display": …}: the chat reads the type. */
static enum q_code read_thinking(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {"type", "display", "budget_tokens", NULL};
    const json_t *thinking = json_object_get(body, "thinking"),
                 *display = json_object_get(thinking, "display");
    const char *word = json_string_value(display);
    enum q_code rc = dialect_unknown(chat, "thinking", thinking, known, e);
    if (!rc)
        rc = read_budget(chat, thinking, e);
    if (rc || !display || json_is_null(display) || (word && !strcmp(word, "summarized")))
        return rc;
    if (!word || strcmp(word, "omitted") != 0)
        return q_fail(e, Q_INVALID,
                      "thinking.display: accepted are \"summarized\" and \"omitted\"");
    return dialect_set(chat, "include_reasoning", json_false(), e);
}

static enum q_code read_rest(json_t *chat, const json_t *body, struct q_err *e)
{
    static const char *const known[] = {"effort", "format", NULL};
    const json_t *output = json_object_get(body, "output_config");
    enum q_code rc;
    if (output && !json_is_null(output) && !json_is_object(output))
        return q_fail(e, Q_INVALID, "output_config: expected an object, got %s", json_kind(output));
    if ((rc = dialect_unknown(chat, "output_config", output, known, e)) ||
        (rc = read_thinking(chat, body, e)) ||
        (rc = read_format(chat, "output_format", json_object_get(body, "output_format"), e)) ||
        (rc = read_format(chat, "output_config.format", json_object_get(output, "format"), e)) ||
        (rc = dialect_set_given(chat, "reasoning_effort", json_object_get(output, "effort"), e)) ||
        (rc = dialect_set_given(chat, "stop", json_object_get(body, "stop_sequences"), e)))
        return rc;
    return dialect_set_given(chat, "max_completion_tokens", json_object_get(body, "max_tokens"), e);
}

FALLIBLE anthropic_read(json_t **chat, json_t **entries, const json_t *body, struct q_err *e)
{
    struct dialect_turns t = {.messages = json_array(), .entries = json_array()};
    json_t *made = json_object();
    enum q_code rc = dialect_set(made, "messages", t.messages, e);
    if (!rc && !(rc = dialect_fields_read(made, body, &fields, e)) &&
        !(rc = read_conversation(made, &t, body, e)) &&
        !(rc = dialect_tools_read(made, body, &tools, e)) && !(rc = read_choice(made, body, e)))
        rc = read_rest(made, body, e);
    return dialect_made(rc, made, t.entries, chat, entries);
}
