/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize, /detokenize, and the counts of dialects. What items make of a prompt only the engine
 * knows (a plugin counts the rows of an item), so a prompt with items goes there, to be counted and
 * not to be computed. */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/anthropic.h"
#include "frontend/api/app.h"
#include "frontend/api/json.h"
#include "frontend/link/link.h"
#include "frontend/api/prompt.h"
#include "frontend/api/responses.h"
#include "frontend/api/task.h"

#define TOKENIZE_TIMES 16u /* longer than the longest prompt may a text be */

struct ask {          /* one request */
    struct task task; /* first */
    struct app *app;
    bool to_text;                  /* /detokenize */
    const struct dialect *dialect; /* a count for a body of its form; NULL: the chat's */
    json_t *asked;                 /* the dialect's body */
    json_t *entries;               /* of its messages (dialect.h) */
    const char *adapter;           /* named by the request; in `body` or `adapters`. NULL: none */
    json_t *body;
    struct turn turn;
    struct params params;
    struct prompts prompts;
    struct buf answer;
    uint32_t max_model_len;
    struct item_types item_types;
    struct item_wire items;
    uint32_t
        *positions; /* [turn.parts.list.n] of their placeholders; NULL: the engine finds them */
    struct generation generation; /* that counts */
    struct buf adapters;          /* of the engine when the request came */
};

static struct ask *ask_of(struct generation *f)
{
    return (struct ask *)((char *)f - offsetof(struct ask, generation));
}

static void ask_free(struct task *t)
{
    struct ask *q = (struct ask *)t;
    if (q->generation.calls)
        engines_close(q->app->engines, &q->generation);
    item_wire_release(&q->items);
    q_free(q->positions);
    prompts_release(&q->prompts);
    turn_release(&q->turn);
    json_decref(q->body);
    json_decref(q->asked);
    json_decref(q->entries);
    buf_release(&q->answer);
    buf_release(&q->adapters);
    q_free(q);
}

static void set_param(struct ask *q, const char *field)
{
    snprintf(q->params.param, sizeof q->params.param, "%.63s", field ? field : "");
}

static enum q_code read_body(struct ask *q, struct q_err *e)
{
    const struct served_model *s = &q->app->served;
    struct adapter_entry adapter;
    enum q_code rc;
    if (!s->tokenizer)
        return q_fail(e, Q_UNSUPPORTED, "this server has no tokenizer (--skip-tokenizer-init)");
    if ((rc = json_body(&q->body, q->task.text.data, q->task.text.n, e)) != Q_OK)
        return rc;
    if (q->dialect) {
        q->asked = q->body;
        q->body = NULL;
        if ((rc = q->dialect->read(&q->body, &q->entries, q->asked, e)) != Q_OK) {
            params_note_field(&q->params, e);
            return rc;
        }
        json_object_del(q->body, "thinking_token_budget"); /* of the answer; it is in `thinking` */
    }
    const char *model = json_string_value(json_object_get(q->body, "model"));
    if ((rc = served_model_find_name(s, model, &q->adapters, &adapter, e))) {
        set_param(q, "model");
        return rc;
    }
    q->adapter = adapter.name;
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

/* Those of content parts. */
static enum q_code take_parts(struct ask *q, struct q_err *e)
{
    const struct parts *parts = &q->turn.parts;
    if (!parts->list.n)
        return Q_OK;
    if (!(q->positions = q_calloc(parts->list.n, sizeof *q->positions)))
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory for %zu items", parts->list.n);
    for (size_t i = 0; i < parts->list.n; i++)
        q->positions[i] = (uint32_t)parts->places[i].position;
    return item_wire_make(&q->items, parts->list.items, (uint32_t)parts->list.n, e);
}

/* Those of multi_modal_data. */
static enum q_code read_items(struct ask *q, struct q_err *e)
{
    const struct item_rules rules = prompts_item_rules(q->app->options, !q->app->server);
    struct item_list list = ITEM_LIST_INIT;
    if (!q->params.has[FIELD_multi_modal_data])
        return Q_OK;
    set_param(q, "multi_modal_data");
    if (q->params.messages)
        return q_fail(e, Q_INVALID,
                      "multi_modal_data: of messages, items are content parts; remove the field");
    enum q_code rc = item_list_read(&list, q->params.multi_modal_data, &rules, e);
    if (rc == Q_OK)
        rc = item_wire_make(&q->items, list.items, (uint32_t)list.n, e);
    item_list_release(&list);
    return rc;
}

/* Clients ask by how much a text is too long, which takes time. */
static FALLIBLE check_bytes(struct ask *q, struct q_err *e)
{
    const struct prompt *it = q->prompts.items;
    if (!it->text ||
        served_model_may_fit(&q->app->served, it->n_text / TOKENIZE_TIMES, q->max_model_len))
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "%s: %zu bytes are more than %u times those of the longest prompt of %u tokens; "
                  "send the text in parts",
                  q->params.messages ? "messages" : "prompt", it->n_text, TOKENIZE_TIMES,
                  q->max_model_len);
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
    if ((rc = check_bytes(q, e)) != Q_OK ||
        (rc = prompt_encode(q->prompts.items, s, add_special, e)) != Q_OK ||
        (rc = take_parts(q, e)) != Q_OK)
        return rc;
    return read_items(q, e);
}

static void add_tokens(const struct app *a, const struct ask *q, struct buf *out)
{
    const struct token_list *ids = prompt_ids(q->prompts.items);
    if (q->dialect) {
        buf_printf(out, "%s%zu}", q->dialect->counted, ids->n);
        return;
    }
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
    if (rc == Q_OK && !q->to_text && (rc = tokenize(q, e)) == Q_OK && !q->items.n_shape)
        add_tokens(q->app, q, &q->answer);
    if (rc == Q_OK && q->to_text && (rc = detokenize(q, &text, e)) == Q_OK) {
        buf_add_str(&q->answer, "{\"prompt\":");
        buf_add_json_str(&q->answer, buf_str(&text), text.len);
        buf_add_char(&q->answer, '}');
    }
    buf_release(&text);
    return rc == Q_OK ? buf_check(&q->answer, "the answer", e) : rc;
}

static void reply(struct ask *q, const struct q_err *e, uint32_t retry_after_ms)
{
    struct dialect_error told;
    dialect_error_of(&told, q->body ? q->dialect : NULL, q->entries, e->message, q->params.param);
    if (e->code == Q_OK)
        http_reply(q->task.x, 200, "application/json", &q->answer);
    else
        http_reply_error(q->task.x,
                         &(struct http_error){
                             .code = e->code,
                             .message = told.message,
                             .param = told.param,
                             .form = q->dialect ? q->dialect->error_form : HTTP_ERROR_OPENAI,
                             .openai_code = e->code == Q_NOT_FOUND ? "model_not_found" : NULL,
                             .retry_after_s = (retry_after_ms + 999) / 1000,
                         });
}

static void on_expanded(struct generation *f, const uint32_t *positions, const uint32_t *n_token,
                        size_t n)
{
    struct ask *q = ask_of(f);
    struct q_err e = Q_ERR_INIT;
    if (prompt_expand(q->prompts.items, positions, n_token, n, &e)) {
        engines_close(q->app->engines, f);
        reply(q, &e, 0);
    }
}

static void on_counted(struct generation *f, const struct link_tokens *t)
{
    struct ask *q = ask_of(f);
    struct q_err e = Q_ERR_INIT;
    if (t->finish == FINISH_NONE)
        return;
    add_tokens(q->app, q, &q->answer);
    enum q_code rc = buf_check(&q->answer, "the answer", &e);
    (void)rc; /* in e */
    reply(q, &e, 0);
}

static void on_refused(struct generation *f, enum q_code code, const char *message,
                       uint32_t retry_after_ms)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = q_fail(&e, code, "%s", message);
    (void)rc; /* in e */
    reply(ask_of(f), &e, retry_after_ms);
}

/* Ask the engine what the items make of the prompt. */
static void count(struct ask *q)
{
    static const struct generation_calls calls = {
        .on_tokens = on_counted,
        .on_error = on_refused,
        .on_expanded = on_expanded,
    };
    struct generation *g = &q->generation;
    struct q_err e = Q_ERR_INIT;
    g->calls = &calls;
    g->prompt = q->prompts.items->ids.ids;
    g->n_prompt = q->prompts.items->ids.n;
    g->items = &q->items;
    g->item_positions = q->positions;
    g->n_item_position = q->positions ? q->turn.parts.list.n : 0;
    g->params.max_tokens = 1;
    g->counts_only = true;
    set_param(q, NULL);
    enum q_code rc = g->n_prompt ? Q_OK : q_fail(&e, Q_INVALID, "prompt: has no tokens");
    if (rc || engines_open(q->app->engines, g, &e))
        reply(q, &e, 0);
}

static void answer(struct task *t, const struct q_err *e)
{
    struct ask *q = (struct ask *)t;
    char both[UNKNOWN_BOTH_MAX];
    const char *warning = unknown_warning(&q->params.unknown, both);
    if (warning)
        http_warn(t->x, warning);
    struct q_err refused = Q_ERR_INIT;
    if (e->code == Q_OK && app_check_key(q->app, t->x, q->adapter, &refused) != Q_OK) {
        set_param(q, "model");
        e = &refused;
    }
    if (e->code == Q_OK && q->items.n_shape)
        count(q);
    else
        reply(q, e, 0);
}

/* again: the handler, for a request that has to wait */
static void start(struct app *a, struct http_exchange *x, const struct dialect *dialect,
                  http_handler *again)
{
    static const struct task_calls calls = {prepare, answer, ask_free};
    if (!app_available(a, x, again))
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
    q->to_text = again == on_detokenize;
    q->dialect = dialect;
    q->max_model_len =
        app_max_model_len(a); /* read here, because the thread must not access the link */
    const struct buf *adapters = &engines_info(a->engines)->adapters;
    buf_add(&q->adapters, buf_str(adapters), adapters->len);
    app_item_types(a, &q->item_types);
    task_start(&q->task, &calls, &a->tasks, x);
}

void on_tokenize(void *app, struct http_exchange *x)
{
    start(app, x, NULL, on_tokenize);
}

void on_detokenize(void *app, struct http_exchange *x)
{
    start(app, x, NULL, on_detokenize);
}

void on_count_messages(void *app, struct http_exchange *x)
{
    start(app, x, &anthropic_dialect, on_count_messages);
}

void on_count_responses(void *app, struct http_exchange *x)
{
    start(app, x, &responses_dialect, on_count_responses);
}
