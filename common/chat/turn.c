/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/turn.h"
#include <string.h>
#include "common/chat/messages.h"
#include "common/chat/roles.h"
#include "common/chat/thinking.h"
#include "common/parsers/forced.h"

#define TAGS_BYTES 1000000 /* of a structural tag */

void turn_release(struct turn *t)
{
    json_decref(t->messages);
    buf_release(&t->tags);
    *t = (struct turn){.model = NULL};
}

/* The function that tool_choice names; NULL: it names none. */
static const char *named_tool(const json_t *choice)
{
    const json_t *function = json_object_get(choice, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    return name ? name : json_string_value(json_object_get(choice, "name"));
}

static FALLIBLE check_tool_choice(const struct turn_ask *a, const char *mode, struct q_err *e)
{
    const json_t *choice = a->tool_choice;
    bool any = json_array_size(a->tools) > 0;
    static const char *const modes[] = {"none", "auto", "required"};
    size_t i = 0;
    while (i < 3 && strcmp(mode, modes[i]) != 0)
        i++;
    if (choice && (json_is_object(choice) ? !named_tool(choice) : i == 3))
        return q_fail(e, Q_INVALID,
                      "tool_choice: \"%.60s\" is not known; accepted are \"none\", \"auto\", "
                      "\"required\" and {\"type\": \"function\", \"function\": {\"name\": …}}",
                      mode);
    if (choice && i != 0 && !any)
        return q_fail(e, Q_INVALID, "tool_choice: needs \"tools\"");
    if (any && (i == 1 || !choice) && !a->auto_tool_choice)
        return q_fail(
            e, Q_UNSUPPORTED,
            "tool_choice: \"auto\" is switched off on this server (--no-enable-auto-tool-choice)");
    return Q_OK;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* t->tags, if calls have to be held to something, or stand beside the answer's form. */
static FALLIBLE force(struct turn *t, const struct forced *f, struct q_err *e)
{
    json_t *root = NULL, *answer = NULL;
    struct forced with = *f;
    enum q_code rc = Q_OK;
    if (!f->required && form_binds(&t->ask.form) &&
        (rc = form_tag(&answer, &t->ask.form, e)) != Q_OK) {
        t->field = ""; /* one of many, which the message may name */
        return rc;
    }
    with.answer = answer;
    rc = forced_tools(&root, &with, e);
    json_decref(answer);
    if (rc != Q_OK || !root)
        return rc;
    json_dump_callback(root, add_piece, &t->tags,
                       JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (rc == Q_OK && t->tags.len > TAGS_BYTES)
        rc = q_fail(e, Q_INVALID, "tool_choice: %zu bytes, accepted are at most %d", t->tags.len,
                    TAGS_BYTES);
    return rc != Q_OK ? rc : buf_check(&t->tags, "tool_choice", e);
}

/* tool_choice: "none" hides the tools from the model, "auto" lets it call them, "required" or a
 * named function makes it. */
static FALLIBLE read_tools(struct turn *t, struct q_err *e)
{
    const struct turn_ask *a = &t->ask;
    const json_t *choice = a->tool_choice;
    const char *mode = json_is_string(choice) ? json_string_value(choice) : "";
    bool any = json_array_size(a->tools) > 0;
    enum q_code rc;
    t->field = "tool_choice";
    if ((rc = check_tool_choice(a, mode, e)) != Q_OK)
        return rc;
    t->field = "tools";
    if (any && (rc = tools_check(a->tools, e)) != Q_OK)
        return rc;
    t->field = "tool_choice";
    if (!any || !strcmp(mode, "none"))
        return Q_OK;
    const struct chat *template = t->model->template;
    const struct forced f = {.tool = t->model->tool_parser,
                             .template = template ? chat_tool_source(template) : NULL,
                             .tools = a->tools,
                             .name = named_tool(choice),
                             .required = json_is_object(choice) || !strcmp(mode, "required"),
                             .parallel = a->parallel_tool_calls && !json_is_object(choice)};
    t->tools = a->tools;
    t->bound |= f.required;
    return f.required || a->form.kind != FORM_TAGS ? force(t, &f, e) : Q_OK; /* it says all */
}

FALLIBLE turn_read(struct turn *t, const struct chat_model *m, const struct turn_ask *ask,
                   struct q_err *e)
{
    enum q_code rc;
    *t = (struct turn){.model = m, .ask = *ask, .bound = form_binds(&ask->form)};
    if ((rc = thinking_read(&t->thinking, ask, e)) != Q_OK) {
        t->field = *e->message == 't' ? "thinking" : "enable_thinking";
        return rc;
    }
    if ((rc = read_tools(t, e)) != Q_OK)
        return rc;
    t->field = "messages";
    if (!m->template)
        return q_fail(e, Q_UNSUPPORTED, "messages: this model has no chat template: %s", m->error);
    if ((rc = roles_check(m, ask->trust_template ? ask->chat_template : NULL, ask->messages, e)) ==
            Q_OK &&
        (rc = messages_read(&t->messages, ask->messages, e)) == Q_OK)
        t->field = NULL;
    return rc;
}

FALLIBLE turn_render(const struct turn *t, struct buf *prompt, struct ranges *content,
                     struct q_err *e)
{
    const struct turn_ask *a = &t->ask;
    const struct chat_model *m = t->model;
    struct template_fault fault = {0};
    json_t *kwargs;
    enum q_code rc;
    if (!m->template)
        return q_fail(e, Q_UNSUPPORTED, "messages: this model has no chat template: %s", m->error);
    if (a->chat_template && !a->trust_template)
        return q_fail(e, Q_UNSUPPORTED,
                      "chat_template: this server takes no templates from requests; it was started "
                      "without --trust-request-chat-template");
    const char *source = a->chat_template ? a->chat_template
                         : t->tools       ? chat_tool_source(m->template)
                                          : chat_source(m->template);
    if ((rc = thinking_kwargs(&kwargs, a, source, e)) != Q_OK)
        return rc;
    const struct chat_request r = {.messages = t->messages,
                                   .tools = t->tools,
                                   .documents = a->documents,
                                   .kwargs = kwargs,
                                   .add_generation_prompt = a->add_generation_prompt,
                                   .continue_final_message = a->continue_final_message,
                                   .content = m->content,
                                   .origin = m->parse_special ? NULL : content,
                                   .template_source = a->chat_template};
    rc = chat_render(m->template, &r, prompt, &fault, e);
    json_decref(kwargs);
    if (rc == Q_OK)
        rc = buf_check(prompt, "the rendered conversation", e);
    return rc == Q_OK ? rc : q_wrap(e, "messages");
}

/* An answer that goes on with a message has no reasoning but the message's own, and one that was
 * asked not to think none but what the prompt opened. */
void turn_before(const struct turn *t, const struct buf *prompt, struct turn_before *out)
{
    const struct chat_model *m = t->model;
    out->after = NULL;
    out->tags = NULL;
    if ((!t->ask.form.kind && !t->tags.len) || (t->tags.len && forced_thinks(m->tool_parser)))
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
        .start = parser_reasoning_start(reasoning, buf_str(prompt), prompt->len)};
    *out = NULL;
    if (!config.tool && !config.reasoning)
        return Q_OK;
    return parser_new(out, &config, e);
}
