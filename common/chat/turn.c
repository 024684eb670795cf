/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/turn.h"
#include <string.h>
#include "common/chat/messages.h"
#include "common/chat/roles.h"
#include "common/chat/thinking.h"
#include "common/chat/tool_choice.h"
#include "common/mem.h"
#include "common/parsers/call_grammar.h"

#define TAGS_BYTES ((size_t)8 << 20) /* of a structural tag, as many as the engine compiles */

void turn_release(struct turn *t)
{
    json_decref(t->messages);
    json_decref(t->tools);
    parts_release(&t->parts);
    buf_release(&t->tags);
    *t = (struct turn){.model = NULL};
}

static FALLIBLE check_tool_choice(const struct turn_ask *a, const struct tool_choice *c,
                                  struct q_err *e)
{
    bool any = json_array_size(a->tools) > 0;
    if (a->tool_choice && c->mode != TOOL_NONE && !any)
        return q_fail(e, Q_INVALID, "tool_choice: requires \"tools\"");
    if (any && c->mode == TOOL_AUTO && !a->auto_tool_choice)
        return q_fail(
            e, Q_UNSUPPORTED,
            "tool_choice: \"auto\" is disabled on this server (--no-enable-auto-tool-choice)");
    return Q_OK;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* t->tags, if calls have to be held to something, or stand beside the answer's form. */
static FALLIBLE force(struct turn *t, const struct call_grammar *f, struct q_err *e)
{
    json_t *root = NULL, *answer = NULL;
    struct call_grammar with = *f;
    enum q_code rc = Q_OK;
    if (!f->required && form_binds(&t->ask.form) &&
        (rc = form_tag(&answer, &t->ask.form, e)) != Q_OK) {
        t->field = ""; /* one of many, which the message may name */
        return rc;
    }
    with.answer = answer;
    rc = call_grammar_tools(&root, &with, e);
    json_decref(answer);
    if (rc != Q_OK || !root)
        return rc;
    json_dump_callback(root, add_piece, &t->tags,
                       JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (t->tags.len > TAGS_BYTES) {
        t->field = "tools";
        return q_fail(
            e, Q_INVALID,
            "tools: the grammar of the calls has %zu bytes, expected at most %zu; shorten "
            "the schemas of the functions",
            t->tags.len, TAGS_BYTES);
    }
    return buf_check(&t->tags, "tools", e);
}

/* tool_choice: "none" hides the tools from the model, "auto" lets it call them, "required" or a
 * named function makes it; allowed_tools hides the others. */
static FALLIBLE read_tools(struct turn *t, struct q_err *e)
{
    const struct turn_ask *a = &t->ask;
    struct tool_choice choice;
    enum q_code rc;
    t->field = "tool_choice";
    if ((rc = tool_choice_read(&choice, a->tool_choice, e)) != Q_OK ||
        (rc = check_tool_choice(a, &choice, e)) != Q_OK)
        return rc;
    t->field = "tools";
    if ((rc = tools_read(&t->tools, a->tools, e)) != Q_OK)
        return rc;
    t->field = "tool_choice";
    if (choice.mode == TOOL_NONE) {
        json_decref(t->tools);
        t->tools = NULL;
    }
    if (!t->tools)
        return Q_OK;
    if ((rc = tool_choice_apply(&choice, t->tools, e)) != Q_OK)
        return rc;
    const struct chat *template = t->model->template;
    const struct call_grammar f = {
        .tool = t->model->tool_parser,
        .template = template ? chat_tool_source(template) : NULL,
        .tools = t->tools,
        .listed = a->tools,
        .name = choice.name,
        .required = choice.mode == TOOL_REQUIRED,
        .parallel = a->parallel_tool_calls && !choice.name,
    };
    t->bound |= f.required;
    return f.required || a->form.kind != FORM_TAGS ? force(t, &f, e) : Q_OK; /* it says all */
}

static enum q_code no_template(const struct chat_model *m, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED, "messages: this model%s: %s",
                  m->broken ? "'s chat template cannot be used" : " has no chat template",
                  m->error);
}

static FALLIBLE read_turn(struct turn *t, const struct chat_model *m, const struct turn_ask *ask,
                          struct q_err *e)
{
    enum q_code rc;
    *t = (struct turn){.model = m, .ask = *ask, .bound = form_binds(&ask->form)};
    if ((rc = thinking_read(&t->thinking, ask, e)) != Q_OK) {
        t->field = *e->message == 't'   ? "thinking"
                   : *e->message == 'r' ? "reasoning_effort"
                                        : "enable_thinking";
        return rc;
    }
    if ((rc = read_tools(t, e)) != Q_OK)
        return rc;
    t->field = "messages";
    t->parts.types = ask->item_types;
    t->parts.rules = ask->item_rules;
    if (!m->template)
        return no_template(m, e);
    if ((rc = roles_check(m, ask->trust_template ? ask->chat_template : NULL, ask->messages, e)) ==
            Q_OK &&
        (rc = messages_read(&t->messages, ask->messages, &t->parts, e)) == Q_OK)
        t->field = NULL;
    return rc;
}

FALLIBLE turn_read(struct turn *t, const struct chat_model *m, const struct turn_ask *ask,
                   struct q_err *e)
{
    const uint64_t n_failure = mem_failure_count();
    return mem_check(n_failure, read_turn(t, m, ask, e), "the conversation", e);
}

/* The form of images that the template takes. source: its text. */
static FALLIBLE give_images(struct turn *t, const char *source, struct q_err *e)
{
    const struct item_type *type = parts_image_type(&t->parts);
    bool all;
    enum q_code rc;
    if (!type)
        return Q_OK;
    if ((rc = parts_literals(&t->parts, t->model->tokenizer, &all, e)))
        return rc;
    const char *literal = t->parts.literals[type - t->parts.types->rows];
    t->parts.in_list = all && chat_takes_images(t->model->content, source, literal);
    return t->parts.in_list ? Q_OK : messages_join_images(t->messages, &t->parts, e);
}

/* Render and take the items' places. content: NULL, or the ranges of the request's text. */
static FALLIBLE render_parts(struct turn *t, const struct chat_request *r, struct buf *prompt,
                             struct ranges *content, struct q_err *e)
{
    struct template_fault fault = {0};
    const size_t from = prompt->len;
    struct chat_request with = *r;
    struct ranges own = RANGES_INIT; /* which literals are the template's, in any case */
    with.origin = !content && t->parts.in_list ? &own : content;
    enum q_code rc = chat_render(t->model->template, &with, prompt, &fault, e);
    if (rc == Q_OK)
        rc = buf_check(prompt, "the rendered conversation", e);
    if (rc == Q_OK)
        rc = parts_take(&t->parts, prompt, from, with.origin, e);
    ranges_release(&own);
    return rc;
}

static FALLIBLE render(struct turn *t, struct buf *prompt, struct ranges *content, struct q_err *e)
{
    const struct turn_ask *a = &t->ask;
    const struct chat_model *m = t->model;
    json_t *kwargs;
    enum q_code rc;
    if (!m->template)
        return no_template(m, e);
    if (a->chat_template && !a->trust_template)
        return q_fail(e, Q_UNSUPPORTED,
                      "chat_template: this server does not accept templates in requests; it was "
                      "started without --trust-request-chat-template");
    const char *source = a->chat_template ? a->chat_template
                         : t->tools       ? chat_tool_source(m->template)
                                          : chat_source(m->template);
    if ((rc = give_images(t, source, e)) != Q_OK ||
        (rc = thinking_kwargs(&kwargs, a, source, e)) != Q_OK)
        return rc;
    if (m->kwargs && json_object_update_missing(kwargs, m->kwargs) != 0) { /* the server's */
        json_decref(kwargs);
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory");
    }
    const struct chat_request r = {
        .messages = t->messages,
        .tools = t->tools,
        .documents = a->documents,
        .kwargs = kwargs,
        .add_generation_prompt = a->add_generation_prompt,
        .continue_final_message = a->continue_final_message,
        .content = m->content,
        .template_source = a->chat_template,
    };
    rc = render_parts(t, &r, prompt, m->parse_special ? NULL : content, e);
    json_decref(kwargs);
    return rc == Q_OK ? rc : q_wrap(e, "messages");
}

FALLIBLE turn_render(struct turn *t, struct buf *prompt, struct ranges *content, struct q_err *e)
{
    const uint64_t n_failure = mem_failure_count();
    return mem_check(n_failure, render(t, prompt, content, e), "the prompt", e);
}

FALLIBLE turn_check_length(const char *what, uint32_t n_prompt, uint32_t asked, uint32_t limit,
                           struct q_err *e)
{
    if (n_prompt < limit && asked <= limit - n_prompt)
        return Q_OK;
    asked = asked ? asked : 1;
    return q_fail(e, Q_INVALID,
                  "This model's maximum context length is %u tokens. However, you requested %u "
                  "tokens (%u in the %s, %u in the completion). Please reduce the length of the %s "
                  "or completion.",
                  limit, n_prompt + asked, n_prompt, what, asked, what);
}

/* An answer that goes on with a message has no reasoning but the message's own, and one that was
 * asked not to think none but what the prompt opened. */
void turn_before(const struct turn *t, const struct buf *prompt, struct turn_before *out)
{
    const struct chat_model *m = t->model;
    out->after = NULL;
    out->tags = NULL;
    if ((!t->ask.form.kind && !t->tags.len) || (t->tags.len && call_grammar_thinks(m->tool_parser)))
        return;
    parser_reasoning_before(&out->prompt, m->reasoning_parser,
                            m->template ? chat_source(m->template) : NULL, buf_str(prompt),
                            prompt->len);
    if (out->prompt.end[0])
        out->after = out->prompt.end;
    else if (out->prompt.n_tags && m->reasoning_tags.len && !t->ask.continue_final_message &&
             t->thinking != THINKING_OFF)
        out->tags = &m->reasoning_tags;
}

FALLIBLE turn_parser(const struct turn *t, const struct buf *prompt, bool thinks,
                     struct parser **out, struct q_err *e)
{
    const char *reasoning = t->bound && !thinks ? NULL : t->model->reasoning_parser;
    const struct parser_config config = {
        .tool = t->tools ? t->model->tool_parser : NULL,
        .reasoning = reasoning,
        .tools = t->tools,
        .start = parser_reasoning_start(reasoning, buf_str(prompt), prompt->len),
    };
    *out = NULL;
    if (!config.tool && !config.reasoning)
        return Q_OK;
    return parser_new(out, &config, e);
}
