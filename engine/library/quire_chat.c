/* SPDX-License-Identifier: Apache-2.0 */
/* Reasoning and complete tool calls of a token are reported before the token's own event. The
 * n_*_given counters hold how much of the parsed answer was reported, so no queue of events is
 * needed. */
#include "engine/library/quire_chat.h"
#include <jansson.h>
#include <string.h>
#include "common/chat/answer.h"
#include "common/chat/json.h"
#include "common/chat/turn.h"
#include "common/mem.h"
#include "common/utf8.h"

struct quire_chat {
    json_t *messages, *tools, *tool_choice, *kwargs, *documents; /* as the caller gave them */
    struct turn turn;
    struct buf prompt;
    struct turn_before before;
    struct ranges content;
    struct parser *parser; /* NULL: all is content */
    struct answer answer;
    size_t n_reasoning_given, n_call_given, n_content_given;
    struct buf call, message; /* shown to the caller */
};

bool quire_chat_asked(const struct quire_params *p)
{
    return p->user || p->messages_json;
}

FALLIBLE quire_chat_unasked(const struct quire_params *p, struct q_err *e)
{
    const struct {
        const char *name;
        bool given;
    } fields[] = {
        {"system", p->system},
        {"tools", p->tools_json},
        {"tool_choice", p->tool_choice_json},
        {"chat_template_kwargs", p->chat_template_kwargs_json},
        {"documents", p->documents_json},
        {"reasoning_effort", p->reasoning_effort},
        {"continue_final_message", p->continue_final_message},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given)
            return q_fail(e, Q_INVALID,
                          "%s: only accepted with a conversation (user or messages_json)",
                          fields[i].name);
    return Q_OK;
}

void quire_chat_free(struct quire_chat *c)
{
    if (!c)
        return;
    turn_release(&c->turn);
    parser_free(c->parser);
    answer_release(&c->answer);
    buf_release(&c->prompt);
    ranges_release(&c->content);
    buf_release(&c->call);
    buf_release(&c->message);
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->tool_choice);
    json_decref(c->kwargs);
    json_decref(c->documents);
    q_free(c);
}

/* A field's JSON; null is the same as absent. */
static FALLIBLE read_field(json_t **out, const char *text, json_type want, const char *field,
                           struct q_err *e)
{
    enum q_code rc;
    if (!text)
        return Q_OK;
    if ((rc = json_text(out, text, strlen(text), e)) != Q_OK)
        return q_wrap(e, "%s", field);
    if (json_is_null(*out))
        *out = NULL;
    else if (want == JSON_ARRAY ? !json_is_array(*out) : !json_is_object(*out))
        rc = q_fail(e, Q_INVALID, "%s: expected %s, got %s", field,
                    want == JSON_ARRAY ? "an array" : "an object", json_kind(*out));
    return rc;
}

/* A mode by its name, quoted as JSON or not, or an object. */
static FALLIBLE read_choice(json_t **out, const char *text, struct q_err *e)
{
    if (!text)
        return Q_OK;
    if (*text >= 'a' && *text <= 'z' && strcmp(text, "null") != 0) {
        *out = json_string(text);
        return *out ? Q_OK : q_fail(e, Q_INVALID, "tool_choice: is not UTF-8");
    }
    if (json_text(out, text, strlen(text), e) != Q_OK)
        return q_wrap(e, "tool_choice");
    if (json_is_null(*out))
        *out = NULL;
    return Q_OK;
}

static FALLIBLE add_message(json_t *messages, const char *role, const char *text, struct q_err *e)
{
    if (!text || (!*text && !strcmp(role, "system")))
        return Q_OK;
    if (!utf8_valid(text, strlen(text)))
        return q_fail(e, Q_INVALID, "messages: the %s's text is not UTF-8", role);
    json_t *m = json_pack("{s:s,s:s}", "role", role, "content", text);
    if (!messages || !m || json_array_append_new(messages, m) != 0)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    return Q_OK;
}

/* system and user as messages */
static FALLIBLE write_messages(json_t **out, const struct quire_params *p, struct q_err *e)
{
    enum q_code rc;
    if (p->messages_json)
        return q_fail(e, Q_INVALID,
                      "messages: given both as user and as messages_json, expected one of them");
    *out = json_array();
    if ((rc = add_message(*out, "system", p->system, e)))
        return rc;
    return add_message(*out, "user", p->user, e);
}

static FALLIBLE read_fields(struct quire_chat *c, const struct quire_params *p, struct q_err *e)
{
    enum q_code rc = p->user
                         ? write_messages(&c->messages, p, e)
                         : read_field(&c->messages, p->messages_json, JSON_ARRAY, "messages", e);
    if (rc || (rc = read_field(&c->tools, p->tools_json, JSON_ARRAY, "tools", e)) ||
        (rc = read_choice(&c->tool_choice, p->tool_choice_json, e)) ||
        (rc = read_field(&c->kwargs, p->chat_template_kwargs_json, JSON_OBJECT,
                         "chat_template_kwargs", e)))
        return rc;
    return read_field(&c->documents, p->documents_json, JSON_ARRAY, "documents", e);
}

static FALLIBLE begin_chat(struct quire_chat *c, const struct chat_model *m,
                           const struct item_types *types, struct quire_params *p, struct q_err *e)
{
    enum q_code rc = read_fields(c, p, e);
    if (rc)
        return rc;
    const struct turn_ask ask = {
        .messages = c->messages,
        .tools = c->tools,
        .tool_choice = c->tool_choice,
        .documents = c->documents,
        .chat_template_kwargs = c->kwargs,
        .reasoning_effort = p->reasoning_effort,
        .add_generation_prompt = !p->continue_final_message,
        .continue_final_message = p->continue_final_message,
        .parallel_tool_calls = p->parallel_tool_calls,
        .auto_tool_choice = true,
        .item_types = types,
        .item_rules = {.files = p->input_files},
        .form = {p->grammar_kind, p->grammar, p->grammar ? strlen(p->grammar) : 0},
    };
    c->answer.one_call = !p->parallel_tool_calls;
    if ((rc = turn_read(&c->turn, m, &ask, e)) ||
        (rc = turn_render(&c->turn, &c->prompt, &c->content, e)))
        return rc;
    turn_before(&c->turn, &c->prompt, &c->before);
    if (c->turn.tags.len) {
        p->grammar_kind = QUIRE_GRAMMAR_STRUCTURAL_TAG;
        p->grammar = buf_str(&c->turn.tags);
    }
    if (p->grammar_after) /* the caller's own goes before */
        c->before.tags = NULL;
    else
        p->grammar_after = c->before.after;
    return turn_parser(&c->turn, &c->prompt, p->grammar_after || c->before.tags, &c->parser, e);
}

FALLIBLE quire_chat_new(struct quire_chat **out, const struct chat_model *m,
                        const struct item_types *types, struct quire_params *p, struct q_err *e)
{
    struct quire_chat *c = q_calloc(1, sizeof *c);
    enum q_code rc =
        c ? begin_chat(c, m, types, p, e) : q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    if (rc)
        quire_chat_free(c);
    else
        *out = c;
    return rc;
}

const struct buf *quire_chat_tags(const struct quire_chat *c)
{
    return c->before.tags;
}

void quire_chat_cut(struct quire_chat *c)
{
    if (c->parser)
        parser_cut(c->parser);
}

const struct buf *quire_chat_prompt(const struct quire_chat *c)
{
    return &c->prompt;
}

const struct ranges *quire_chat_content(const struct quire_chat *c)
{
    return &c->content;
}

struct parts *quire_chat_parts(struct quire_chat *c)
{
    return &c->turn.parts;
}

bool quire_chat_parses(const struct quire_chat *c)
{
    return c->parser != NULL;
}

FALLIBLE quire_chat_feed(struct quire_chat *c, const struct buf *text, bool last,
                         struct buf *content, struct q_err *e)
{
    struct answer *a = &c->answer;
    enum q_code rc = Q_OK;
    if (!c->parser)
        buf_add(&a->content, buf_str(text), text->len);
    else if (!(rc = parser_feed(c->parser, buf_str(text), text->len, answer_take, a, e)) && last)
        rc = parser_finish(c->parser, answer_take, a, e);
    if (rc || (rc = buf_check(&a->content, "the answer", e)))
        return rc;
    buf_add(content, buf_str(&a->content) + c->n_content_given,
            a->content.len - c->n_content_given);
    c->n_content_given = a->content.len;
    return buf_check(content, "text", e);
}

bool quire_chat_next(struct quire_chat *c, struct quire_event *event)
{
    const struct answer *a = &c->answer;
    *event = (struct quire_event){.i_stop = -1, .stop_id = -1};
    if (c->n_reasoning_given < a->reasoning.len) {
        event->kind = QUIRE_REASONING;
        event->text = a->reasoning.data + c->n_reasoning_given;
        event->n_text = a->reasoning.len - c->n_reasoning_given;
        c->n_reasoning_given = a->reasoning.len;
        return true;
    }
    if (c->n_call_given < a->n_call && a->calls[c->n_call_given].whole) {
        buf_reset(&c->call);
        answer_call_json(&a->calls[c->n_call_given++], &c->call);
        event->kind = QUIRE_TOOL_CALL;
        event->text = buf_str(&c->call);
        event->n_text = c->call.len;
        return true;
    }
    return false;
}

bool quire_chat_calls(const struct quire_chat *c)
{
    return answer_has_calls(&c->answer);
}

const char *quire_chat_message(struct quire_chat *c)
{
    buf_reset(&c->message);
    answer_json(&c->answer, &c->message);
    return c->message.failed ? NULL : buf_str(&c->message);
}
