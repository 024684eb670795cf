/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize and /detokenize. */
#include <string.h>
#include "frontend/api/app.h"
#include "frontend/api/json.h"
#include "frontend/api/prompt.h"

struct ask { /* one request; everything is released at the end of the handler */
    json_t *body, *messages;
    struct params params;
    struct prompts prompts;
};

static void ask_release(struct ask *q)
{
    prompts_release(&q->prompts);
    json_decref(q->messages);
    json_decref(q->body);
}

static enum q_code read_body(struct app *a, struct http_exchange *x, struct ask *q,
                             enum params_where where, struct q_err *e)
{
    struct http_text text = http_body(x);
    enum q_code rc;
    if (!a->served.tokenizer)
        return q_fail(e, Q_UNSUPPORTED, "this server has no tokenizer (--skip-tokenizer-init)");
    if ((rc = json_body(&q->body, text.data, text.n, e)) ||
        (rc = params_read(&q->params, q->body, where, e)))
        return rc;
    return served_check_name(&a->served, q->params.model, e);
}

static enum q_code tokenize(struct app *a, struct ask *q, struct q_err *e)
{
    const struct params *p = &q->params;
    enum q_code rc;
    bool add_special = p->add_special_tokens;
    if (p->messages) {
        add_special =
            p->has[FIELD_add_special_tokens] && p->add_special_tokens; /* templates write them */
        if ((rc = tools_check(p->tools, e)) || (rc = messages_read(&q->messages, p->messages, e)) ||
            (rc = prompts_render(&q->prompts, &a->served, p, q->messages,
                                 json_array_size(p->tools) ? p->tools : NULL, e)))
            return rc;
    } else if (!json_is_string(p->prompt)) {
        return q_fail(e, Q_INVALID, "prompt: expected a string, got %s",
                      p->prompt ? json_kind(p->prompt) : "nothing");
    } else if ((rc = prompts_read(&q->prompts, p->prompt, &a->served, e)) != Q_OK) {
        return rc;
    }
    struct prompt *it = q->prompts.items;
    return tokenizer_encode(a->served.tokenizer, it->text, it->n_text, add_special, &it->ids, e);
}

static void add_tokens(const struct app *a, const struct ask *q, struct buf *out)
{
    const struct token_list *ids = &q->prompts.items->ids;
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->n,
               app_max_model_len(a));
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%u", i ? "," : "", ids->ids[i]);
    buf_add_str(out, "],\"token_strs\":");
    if (!q->params.return_token_strs) {
        buf_add_str(out, "null}");
        return;
    }
    buf_add_char(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        struct buf bytes = BUF_INIT;
        struct q_err e = Q_ERR_INIT;
        if (tokenizer_token_bytes(a->served.tokenizer, ids->ids[i], &bytes, &e) != Q_OK)
            out->failed = e.code;
        buf_add_str(out, i ? "," : "");
        buf_add_json_str(out, buf_str(&bytes), bytes.len);
        buf_release(&bytes);
    }
    buf_add_str(out, "]}");
}

static void answer(struct http_exchange *x, enum q_code rc, struct buf *body, struct ask *q,
                   struct q_err *e)
{
    if (rc == Q_OK)
        rc = buf_check(body, "the answer", e);
    if (rc == Q_OK)
        http_reply(x, 200, "application/json", body);
    else
        app_reply_error(x, e, q->params.param);
    buf_release(body);
    ask_release(q);
}

void on_tokenize(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct ask q = {0};
    struct buf body = BUF_INIT;
    enum q_code rc;
    if (!app_available(a, x, on_tokenize))
        return;
    if ((rc = read_body(a, x, &q, WHERE_TOKENS, &e)) == Q_OK && (rc = tokenize(a, &q, &e)) == Q_OK)
        add_tokens(a, &q, &body);
    answer(x, rc, &body, &q, &e);
}

static enum q_code detokenize(struct app *a, struct ask *q, struct buf *text, struct q_err *e)
{
    const json_t *tokens = q->params.tokens;
    enum q_code rc;
    if (!tokens)
        return q_fail(e, Q_INVALID, "tokens: the field is missing");
    if (json_array_size(tokens) == 0)
        return Q_OK;
    if (!json_is_integer(json_array_get(tokens, 0)))
        return q_fail(e, Q_INVALID, "tokens: expected an array of token ids");
    if ((rc = prompts_read(&q->prompts, tokens, &a->served, e)) != Q_OK)
        return rc;
    return tokenizer_decode(a->served.tokenizer, q->prompts.items->ids.ids, q->prompts.items->ids.n,
                            false, text, e);
}

void on_detokenize(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct ask q = {0};
    struct buf body = BUF_INIT, text = BUF_INIT;
    enum q_code rc;
    if (!app_available(a, x, on_detokenize))
        return;
    if ((rc = read_body(a, x, &q, WHERE_DETOK, &e)) == Q_OK &&
        (rc = detokenize(a, &q, &text, &e)) == Q_OK) {
        buf_add_str(&body, "{\"prompt\":");
        buf_add_json_str(&body, buf_str(&text), text.len);
        buf_add_char(&body, '}');
    }
    buf_release(&text);
    answer(x, rc, &body, &q, &e);
}
