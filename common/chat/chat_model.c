/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/chat_model.h"
#include <string.h>
#include "common/file.h"
#include "common/json_read.h"
#include "common/log.h"
#include "common/parsers/parser.h"
#include "common/chat/thinking.h"

static FALLIBLE content_format(enum chat_content *out, const char *name, struct q_err *e)
{
    *out = !strcmp(name, "string")   ? CHAT_CONTENT_STRING
           : !strcmp(name, "openai") ? CHAT_CONTENT_OPENAI
                                     : CHAT_CONTENT_AUTO;
    if (*out == CHAT_CONTENT_AUTO && strcmp(name, "auto") != 0)
        return q_fail(e, Q_INVALID,
                      "--chat-template-content-format: unknown value \"%.40s\"; accepted are auto, "
                      "string and openai",
                      name);
    return Q_OK;
}

static FALLIBLE check_parser(const struct parser_config *config, const char *option,
                             struct q_err *e)
{
    struct parser *p = NULL;
    enum q_code rc = parser_new(&p, config, e);
    parser_free(p);
    return rc == Q_OK ? rc : q_wrap(e, "%s", option);
}

FALLIBLE chat_model_check(const struct options *o, struct q_err *e)
{
    const char *tool = o->tool_call_parser, *reasoning = o->reasoning_parser;
    enum chat_content content;
    enum q_code rc = content_format(&content, o->chat_template_content_format, e);
    if (rc == Q_OK && strcmp(tool, "auto") != 0)
        rc = check_parser(&(struct parser_config){.tool = tool}, "--tool-call-parser", e);
    if (rc == Q_OK && strcmp(reasoning, "auto") != 0)
        rc = check_parser(&(struct parser_config){.reasoning = reasoning}, "--reasoning-parser", e);
    return rc;
}

static FALLIBLE load_template(struct chat_model *m, const char *dir, const char *file,
                              struct q_err *e)
{
    enum q_code rc = chat_open(&m->template, dir, file, e);
    if (rc == Q_OK || file)
        return rc;
    /* Such a model still completes texts; conversations get the reason. */
    m->broken = rc != Q_NOT_FOUND;
    snprintf(m->error, sizeof m->error, "%s", e->message);
    q_err_reset(e);
    return Q_OK;
}

/* By option, or as the templates show; the options' strings may be gone before the model. Calls of
 * a model that shows none are looked for in the form most models use. */
static void choose_parsers(struct chat_model *m, const struct options *o)
{
    struct parser_detected plain = {NULL, NULL}, tools = {NULL, NULL};
    if (m->template) {
        plain = parser_detect(chat_source(m->template));
        tools = parser_detect(chat_tool_source(m->template));
    }
    m->tool_parser = strcmp(o->tool_call_parser, "auto") ? parser_tool_row(o->tool_call_parser)
                     : tools.tool                        ? tools.tool
                     : plain.tool                        ? plain.tool
                                                         : "hermes";
    m->reasoning_parser = strcmp(o->reasoning_parser, "auto")
                              ? parser_reasoning_row(o->reasoning_parser)
                              : plain.reasoning;
    if (m->reasoning_parser && !strcmp(m->reasoning_parser, "none"))
        m->reasoning_parser = NULL;
    log_info("tool-call parser: %s; reasoning parser: %s", m->tool_parser,
             m->reasoning_parser ? m->reasoning_parser : "none");
}

static FALLIBLE load_kwargs(struct chat_model *m, const char *text, struct q_err *e)
{
    if (*text && !(m->kwargs = json_read_string(text, 0, NULL)))
        return q_fail(e, Q_INVALID,
                      "--default-chat-template-kwargs is not valid JSON, or out of memory");
    return Q_OK;
}

FALLIBLE chat_model_open(struct chat_model *m, const struct options *o, const char *dir,
                         const char *tokenizer_path, struct q_err *e)
{
    const char *file = *o->chat_template ? o->chat_template : NULL;
    enum q_code rc;
    *m = (struct chat_model){.parse_special = o->parse_special_in_content};
    if ((rc = chat_model_check(o, e)) ||
        (rc = content_format(&m->content, o->chat_template_content_format, e)) ||
        (rc = load_kwargs(m, o->default_chat_template_kwargs, e)) ||
        (rc = load_template(m, dir_exists(tokenizer_path) ? tokenizer_path : dir, file, e)))
        return rc;
    choose_parsers(m, o);
    return Q_OK;
}

FALLIBLE chat_model_tags(struct chat_model *m, const struct tokenizer *t, struct q_err *e)
{
    struct parser_before before;
    m->tokenizer = t;
    parser_reasoning_before(&before, m->reasoning_parser,
                            m->template ? chat_source(m->template) : NULL, "", 0);
    return thinking_tags(&m->reasoning_tags, t, &before, e);
}

void chat_model_release(struct chat_model *m)
{
    buf_release(&m->reasoning_tags);
    chat_free(m->template);
    json_decref(m->kwargs);
    *m = (struct chat_model){.template = NULL};
}
