/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize and /detokenize. */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/app.h"
#include "frontend/api/json.h"
#include "frontend/api/prompt.h"
#include "frontend/api/task.h"

struct ask {          /* one request */
    struct task task; /* first */
    struct app *app;
    bool to_text; /* /detokenize */
    json_t *body;
    struct turn turn;
    struct params params;
    struct prompts prompts;
    struct buf answer;
    uint32_t max_model_len;
    struct item_types item_types;
};

static void ask_free(struct task *t)
{
    struct ask *q = (struct ask *)t;
    prompts_release(&q->prompts);
    turn_release(&q->turn);
    json_decref(q->body);
    buf_release(&q->answer);
    q_free(q);
}

static void set_param(struct ask *q, const char *field)
{
    snprintf(q->params.param, sizeof q->params.param, "%.63s", field ? field : "");
}

static enum q_code read_body(struct ask *q, struct q_err *e)
{
    const struct served_model *s = &q->app->served;
    enum q_code rc;
    if (!s->tokenizer)
        return q_fail(e, Q_UNSUPPORTED, "this server has no tokenizer (--skip-tokenizer-init)");
    if ((rc = json_body(&q->body, q->task.text.data, q->task.text.n, e)) != Q_OK)
        return rc;
    if ((rc =
             served_model_check_name(s, json_string_value(json_object_get(q->body, "model")), e))) {
        set_param(q, "model");
        return rc;
    }
    if ((rc = params_read(&q->params, q->body, q->to_text ? WHERE_DETOK : WHERE_TOKENS, e)))
        return rc;
    rc = unknown_check(&q->params.unknown, s->options->strict_fields, e);
    if (rc != Q_OK)
        set_param(q, q->params.unknown.first);
    return rc;
}

/* Read the conversation as the chat endpoint does, so that the same fields determine the prompt. */
static enum q_code render(struct ask *q, struct q_err *e)
{
    const struct served_model *s = &q->app->served;
    struct turn_ask ask = prompts_ask(s, &q->params, &(struct sample_params){.grammar = 0});
    ask.auto_tool_choice = true; /* nothing is called */
    ask.item_types = &q->item_types;
    ask.item_rules = prompts_item_rules(s->options, !q->app->server);
    enum q_code rc = turn_read(&q->turn, &s->chat, &ask, e);
    if (rc != Q_OK)
        set_param(q, q->turn.field);
    else if ((rc = prompts_render(&q->prompts, &q->turn, e)) != Q_OK)
        set_param(q, strncmp(e->message, "chat_template:", 14) ? "messages" : "chat_template");
    return rc;
}

static enum q_code tokenize(struct ask *q, struct q_err *e)
{
    const struct served_model *s = &q->app->served;
    const struct params *p = &q->params;
    enum q_code rc;
    bool add_special = p->add_special_tokens;
    if (p->messages) {
        add_special =
            p->has[FIELD_add_special_tokens] && p->add_special_tokens; /* templates write them */
        if ((rc = render(q, e)) != Q_OK)
            return rc;
        set_param(q, "messages");
    } else if (!json_is_string(p->prompt)) {
        set_param(q, "prompt");
        return p->prompt
                   ? q_fail(e, Q_INVALID, "prompt: expected a string, got %s", json_kind(p->prompt))
                   : q_fail(e, Q_INVALID, "prompt: missing, expected prompt or messages");
    } else {
        set_param(q, "prompt");
        if ((rc = prompts_read(&q->prompts, p->prompt, s, false, e)) != Q_OK)
            return rc;
    }
    return prompt_encode(q->prompts.items, s, add_special, e);
}

static void add_tokens(const struct app *a, const struct ask *q, struct buf *out)
{
    const struct token_list *ids = &q->prompts.items->ids;
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->n, q->max_model_len);
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", (int)ids->ids[i]); /* placeholders are negative */
    buf_add_str(out, "],\"token_strs\":");
    if (!q->params.return_token_strs) {
        buf_add_str(out, "null}");
        return;
    }
    buf_add_char(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *text = tokenizer_token_text(a->served.tokenizer, ids->ids[i], &n);
        buf_add_str(out, i ? "," : "");
        buf_add_json_str(out, text ? text : "", n);
    }
    buf_add_str(out, "]}");
}

static enum q_code detokenize(struct ask *q, struct buf *text, struct q_err *e)
{
    const struct served_model *s = &q->app->served;
    const json_t *tokens = q->params.tokens;
    enum q_code rc;
    set_param(q, "tokens");
    if (!tokens)
        return q_fail(e, Q_INVALID, "tokens: the field is missing");
    if (json_array_size(tokens) == 0)
        return Q_OK;
    if (!json_is_integer(json_array_get(tokens, 0)))
        return q_fail(e, Q_INVALID, "tokens: expected an array of token ids");
    if ((rc = prompts_read(&q->prompts, tokens, s, false, e)) != Q_OK)
        return rc;
    return tokenizer_decode(s->tokenizer, q->prompts.items->ids.ids, q->prompts.items->ids.n, false,
                            text, e);
}

static enum q_code prepare(struct task *t, struct q_err *e)
{
    struct ask *q = (struct ask *)t;
    struct buf text = BUF_INIT;
    enum q_code rc = read_body(q, e);
    if (rc == Q_OK && !q->to_text && (rc = tokenize(q, e)) == Q_OK)
        add_tokens(q->app, q, &q->answer);
    if (rc == Q_OK && q->to_text && (rc = detokenize(q, &text, e)) == Q_OK) {
        buf_add_str(&q->answer, "{\"prompt\":");
        buf_add_json_str(&q->answer, buf_str(&text), text.len);
        buf_add_char(&q->answer, '}');
    }
    buf_release(&text);
    return rc == Q_OK ? buf_check(&q->answer, "the answer", e) : rc;
}

static void answer(struct task *t, const struct q_err *e)
{
    struct ask *q = (struct ask *)t;
    const char *warning = unknown_warning(&q->params.unknown);
    if (warning)
        http_warn(t->x, warning);
    if (e->code == Q_OK)
        http_reply(t->x, 200, "application/json", &q->answer);
    else
        app_reply_error(t->x, e, q->params.param);
}

static void start(struct app *a, struct http_exchange *x, bool to_text)
{
    static const struct task_calls calls = {prepare, answer, ask_free};
    if (!app_available(a, x, to_text ? on_detokenize : on_tokenize))
        return;
    struct ask *q = q_calloc(1, sizeof *q);
    if (!q) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_NO_MEMORY,
                                .message = "out of memory for the request",
                            });
        return;
    }
    q->app = a;
    q->to_text = to_text;
    q->max_model_len =
        app_max_model_len(a); /* read here, because the thread must not access the link */
    app_item_types(a, &q->item_types);
    task_start(&q->task, &calls, &a->tasks, x);
}

void on_tokenize(void *app, struct http_exchange *x)
{
    start(app, x, false);
}

void on_detokenize(void *app, struct http_exchange *x)
{
    start(app, x, true);
}
