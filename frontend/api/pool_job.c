/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes as a job's (job.c): the handler creates it, its task frees it when the exchange has
 * ended, and generations that are open then are closed. */
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/api/json.h"
#include "frontend/api/pool.h"

#define PAUSED_RETRY_S 1 /* seconds, for Retry-After */

static void close_slots(struct pool_job *j)
{
    for (uint32_t i = 0; j->slots && i < POOL_OPEN_MAX; i++)
        if (j->slots[i].is_open) {
            j->slots[i].is_open = false;
            engines_close(j->app->engines, &j->slots[i].generation);
        }
}

static void job_free(struct task *t)
{
    struct pool_job *j = (struct pool_job *)t;
    if (!j->ended)
        metric_add(METRIC_SUCCESS_ABORT, 1);
    close_slots(j);
    for (size_t i = 0; i < j->n_text && j->texts; i++) {
        token_list_release(&j->texts[i].ids);
        q_free(j->texts[i].values);
    }
    q_free(j->texts);
    turn_release(&j->turn);
    prompts_release(&j->chat);
    item_wire_release(&j->items);
    q_free(j->positions);
    json_decref(j->sides[0]);
    json_decref(j->sides[1]);
    q_free(j->slots);
    json_decref(j->body);
    q_free(j);
}

static void fail(struct pool_job *j, const struct q_err *e, uint32_t retry_after_s)
{
    if (j->ended)
        return;
    j->ended = true;
    close_slots(j);
    if (q_code_http(e->code) >= 500)
        log_warning("%s: %s", j->id, e->message);
    if ((e->code == Q_NO_SPACE || e->code == Q_UNAVAILABLE) && !retry_after_s)
        retry_after_s = 1;
    http_reply_error(j->task.x, &(struct http_error){
                                    .code = e->code,
                                    .message = e->message,
                                    .param = *j->param ? j->param : NULL,
                                    .openai_code = j->too_long ? "context_length_exceeded"
                                                   : e->code == Q_NOT_FOUND ? "model_not_found"
                                                                            : NULL,
                                    .retry_after_s = retry_after_s,
                                });
}

static void finish(struct pool_job *j)
{
    const bool is_body = pool_values_is_body(&j->values);
    struct q_err e = Q_ERR_INIT;
    struct buf body = BUF_INIT, metadata = BUF_INIT;
    pool_reply(j, &body);
    if (j->values.encoding == POOL_BYTES)
        pool_reply_metadata(j, &metadata);
    if (buf_check(&body, "the answer", &e) || buf_check(&metadata, "the answer", &e)) {
        buf_release(&body);
        buf_release(&metadata);
        fail(j, &e, 0);
        return;
    }
    j->ended = true;
    if (metadata.len)
        http_add_header(j->task.x, "metadata", buf_str(&metadata));
    buf_release(&metadata);
    metric_add(METRIC_SUCCESS_STOP, 1);
    metric_observe(METRIC_E2E, (double)(clock_us() - j->arrived_us) / 1e6);
    http_reply(j->task.x, 200, is_body ? "application/octet-stream" : "application/json", &body);
}

static const struct generation_calls slot_calls;

static enum q_code open_slot(struct pool_job *j, struct pool_slot *s, struct q_err *e)
{
    const struct pool_text *t = &j->texts[j->n_next];
    *s = (struct pool_slot){
        .generation =
            {
                .calls = &slot_calls,
                .prompt = t->ids.ids,
                .n_prompt = t->ids.n,
                .priority = (int32_t)json_integer_value(j->fields[POOL_priority]),
                .tenant = j->tenant.id,
                .weight = j->weight,
                .arrived_ms = j->arrived_us / 1000,
                .n_cache_salt = j->tenant.n_salt,
                .request = &j->request,
            },
        .job = j,
        .i_text = j->n_next,
    };
    if (j->positions) { /* a conversation is one text */
        s->generation.items = &j->items;
        s->generation.item_positions = j->positions;
        s->generation.n_item_position = j->turn.parts.list.n;
    }
    sample_params_default(&s->generation.params);
    s->generation.params.max_tokens = 1;
    s->generation.params.pools = true;
    s->generation.params.n_value = j->n_value;
    s->generation.params.raw_vector = j->is_raw;
    s->generation.params.second_text = t->second_at;
    memcpy(s->generation.cache_salt, j->tenant.salt, sizeof j->tenant.salt);
    j->request.n = (uint32_t)j->n_text;
    const enum q_code rc = engines_open(j->app->engines, &s->generation, e);
    s->is_open = rc == Q_OK;
    j->n_next += rc == Q_OK;
    return rc;
}

/* Open generations while there are texts and slots; no more than the engine may have. */
static void open_more(struct pool_job *j)
{
    struct q_err e = Q_ERR_INIT;
    const uint32_t n_req = engines_info(j->app->engines)->max_num_reqs;
    const uint32_t n_open = n_req && n_req < POOL_OPEN_MAX ? n_req : POOL_OPEN_MAX;
    for (uint32_t i = 0; i < n_open && j->n_next < j->n_text; i++)
        if (!j->slots[i].is_open && open_slot(j, &j->slots[i], &e)) {
            fail(j, &e, 0); /* which may free the job */
            return;
        }
}

static void on_tokens(struct generation *g, const struct link_tokens *t)
{
    struct pool_slot *s = (struct pool_slot *)g;
    struct pool_job *j = s->job;
    struct pool_text *text = &j->texts[s->i_text];
    struct q_err e = Q_ERR_INIT;
    if (j->ended)
        return;
    if (t->n_value && !text->values) {
        text->values = q_alloc(t->n_value * sizeof *text->values);
        text->n_value = text->values ? t->n_value : 0;
        if (text->values)
            memcpy(text->values, t->values, t->n_value * sizeof *t->values);
    }
    if (t->finish == FINISH_NONE)
        return;
    s->is_open = false;
    engines_close(j->app->engines, g);
    if (t->finish != FINISH_STOP || !text->values) {
        const enum q_code rc =
            t->finish == FINISH_ABORT
                ? q_fail(&e, Q_UNAVAILABLE, "the request was aborted by the server")
                : q_fail(&e, Q_INTERNAL, "the model's vector has a value that is NaN or infinite");
        (void)rc;
        fail(j, &e, 0);
        return;
    }
    const uint64_t n_token = text->ids.n + text->n_expanded;
    j->n_token += n_token;
    j->n_cached += t->n_cached;
    metric_add(METRIC_PROMPT_TOKENS, n_token);
    metric_observe(METRIC_REQ_PROMPT, (double)n_token);
    if (++j->n_done == j->n_text)
        finish(j);
    else
        open_more(j);
}

static void on_error(struct generation *g, enum q_code code, const char *message,
                     uint32_t retry_after_ms)
{
    struct pool_slot *s = (struct pool_slot *)g;
    struct q_err e = Q_ERR_INIT;
    s->is_open = false;
    engines_close(s->job->app->engines, g);
    q_fail_text(&e, code, "%s", message);
    fail(s->job, &e, (retry_after_ms + 999) / 1000);
}

static void on_expanded(struct generation *g, const uint32_t *positions, const uint32_t *n_token,
                        size_t n)
{
    const struct pool_slot *s = (struct pool_slot *)g;
    struct pool_text *text = &s->job->texts[s->i_text];
    (void)positions;
    text->n_expanded = 0; /* a second engine says it again */
    for (size_t i = 0; i < n; i++)
        text->n_expanded += n_token[i] - 1;
}

static const struct generation_calls slot_calls = {
    .on_tokens = on_tokens,
    .on_error = on_error,
    .on_expanded = on_expanded,
};

/* An error of the texts is of the field that has them. */
static void note_texts(struct pool_job *j)
{
    const bool is_paired = j->form == POOL_SCORE || j->form == POOL_RERANK;
    const char *field = is_paired ? "documents" : j->fields[POOL_messages] ? "messages" : "input";
    snprintf(j->param, sizeof j->param, "%s", field);
}

static enum q_code job_prepare(struct task *t, struct q_err *e)
{
    struct pool_job *j = (struct pool_job *)t;
    const enum q_code rc = pool_read(j, e);
    if (rc || (!pool_encode(j, e) && !pool_take_items(j, e)))
        return rc;
    note_texts(j);
    return q_wrap(e, "%s", j->param);
}

static enum q_code find_tenant(struct pool_job *j, struct q_err *e)
{
    unsigned char key[32];
    const struct tenant_source from = {
        .digest = j->app->served.digest,
        .key = http_key(j->task.x, key) ? key : NULL,
        .user = json_string_value(j->fields[POOL_user]),
        .salt = json_string_value(j->fields[POOL_cache_salt]),
        .apart = j->app->options->prefix_cache_per_key,
    };
    j->weight = http_key_weight(j->task.x);
    return tenant_of(&j->tenant, &from, e);
}

static void job_prepared(struct task *t, const struct q_err *error)
{
    struct pool_job *j = (struct pool_job *)t;
    struct q_err e = *error;
    char both[UNKNOWN_BOTH_MAX];
    const char *warning = unknown_warning(&j->unknown, both);
    enum q_code rc = e.code;
    uint32_t retry_s = 0;
    if (warning)
        http_warn(t->x, warning);
    if (!rc && engines_info(j->app->engines)->refusing) {
        rc = q_fail(&e, Q_UNAVAILABLE, "generation is paused; retry after it resumes");
        retry_s = PAUSED_RETRY_S;
    }
    if (!rc && (rc = app_check_key(j->app, t->x, NULL, &e)))
        snprintf(j->param, sizeof j->param, "model");
    if (!rc && (rc = pool_check_lengths(j, &e)) && j->too_long)
        note_texts(j);
    if (!rc)
        rc = find_tenant(j, &e);
    if (!rc && !(j->slots = q_calloc(POOL_OPEN_MAX, sizeof *j->slots)))
        rc = q_fail(&e, Q_NO_MEMORY, "out of memory for the request");
    if (rc)
        fail(j, &e, retry_s);
    else
        open_more(j);
}

static const struct task_calls job_calls = {job_prepare, job_prepared, job_free};

/* ---- routes ---- */

static const struct {
    enum pool_form form;
    const char *prefix;
    http_handler *handler;
} forms[] = {
    {POOL_EMBEDDINGS, "embd-", on_embeddings}, {POOL_POOLING, "pool-", on_pooling},
    {POOL_CLASSIFY, "classify-", on_classify}, {POOL_SCORE, "score-", on_score},
    {POOL_RERANK, "rerank-", on_rerank},
};

/* What the model has to make for the route; NULL: it does. */
static const char *missing(const struct pooling *p, enum pool_form form)
{
    if (form == POOL_NOT)
        return p->makes == ARCHS_GENERATES ? NULL
               : p->makes == ARCHS_EMBEDS
                   ? "The model makes embeddings and generates no text; use /v1/embeddings, /score "
                     "or /rerank"
                   : "The model classifies and generates no text; use /classify, /score or /rerank";
    if (p->makes == ARCHS_GENERATES)
        return "The model generates text and makes no vectors; use /v1/chat/completions or "
               "/v1/completions, or serve it with --runner pooling";
    if (form == POOL_EMBEDDINGS && p->makes != ARCHS_EMBEDS)
        return "The model classifies and does not support the Embeddings API; use /classify, "
               "/pooling, /score or /rerank";
    if (form == POOL_CLASSIFY && p->makes != ARCHS_CLASSIFIES)
        return "The model makes embeddings and does not support the Classification API; use "
               "/v1/embeddings, /pooling, /score or /rerank";
    if ((form == POOL_SCORE || form == POOL_RERANK) && p->makes == ARCHS_CLASSIFIES &&
        p->n_out != 1)
        return "The model has more than one class: scores are those of a model with one class, or "
               "of an embedding model; use /classify";
    return NULL;
}

bool pool_refuses(struct app *a, struct http_exchange *x, enum pool_form form)
{
    const char *why = missing(&a->served.pooling, form);
    if (why)
        http_reply_error(x, &(struct http_error){.code = Q_INVALID, .message = why});
    return why != NULL;
}

static void start(struct app *a, struct http_exchange *x, enum pool_form form)
{
    size_t i = 0;
    while (forms[i].form != form)
        i++;
    if (pool_refuses(a, x, form) || !app_available(a, x, forms[i].handler))
        return;
    struct pool_job *j = q_calloc(1, sizeof *j);
    if (!j) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_NO_MEMORY,
                                .message = "out of memory for the request",
                            });
        return;
    }
    j->app = a;
    j->form = form;
    app_item_types(a, &j->item_types);
    j->max_model_len = app_max_model_len(a); /* read here: a thread must not access the link */
    j->created = clock_unix();
    j->arrived_us = clock_us();
    j->n_id_prefix = reply_id_make(j->id, forms[i].prefix, x);
    task_start(&j->task, &job_calls, &a->tasks, x);
}

void on_embeddings(void *app, struct http_exchange *x)
{
    start(app, x, POOL_EMBEDDINGS);
}

void on_pooling(void *app, struct http_exchange *x)
{
    start(app, x, POOL_POOLING);
}

void on_classify(void *app, struct http_exchange *x)
{
    start(app, x, POOL_CLASSIFY);
}

void on_score(void *app, struct http_exchange *x)
{
    start(app, x, POOL_SCORE);
}

void on_rerank(void *app, struct http_exchange *x)
{
    start(app, x, POOL_RERANK);
}
