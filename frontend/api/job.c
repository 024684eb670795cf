/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes: the handler creates the job; its task (task.h) frees it when the exchange has
 * ended. */
#include "frontend/api/job_internal.h"

#include <inttypes.h>
#include <string.h>
#include "common/chat/thinking_words.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/api/anthropic.h"
#include "frontend/api/json.h"
#include "frontend/api/pool.h"
#include "frontend/api/request_record.h"
#include "frontend/api/responses.h"
#include "frontend/api/structured.h"

#define PAUSED_RETRY_S  1 /* seconds, for Retry-After */
#define FAILED_LOG_MS   500
#define TEXT_MAX_TOKENS 16 /* OpenAI's default for completions */

/* A line for each prompt whose choices were opened. */
static void record_request(const struct job *j)
{
    for (size_t i = 0; j->n_choice && i < j->prompts.n; i++) {
        const struct token_list *ids = prompt_ids(&j->prompts.items[i]);
        struct recorded_request q = {
            .ids = ids->ids,
            .n_id = ids->n,
            .body = j->body,
            .arrived_us = j->arrived_us,
            .n_tool = json_array_size(j->params.tools),
            .is_chat = j->chat,
            .is_stream = j->params.stream,
            .has_grammar = j->sampling.grammar != 0,
            .has_items = job_items_of(j, i) != NULL,
        };
        for (uint32_t k = 0; k < j->n_choice; k++) {
            const struct choice *c = &j->choices[k];
            if (c->prompt != &j->prompts.items[i])
                continue;
            q.n_output = c->n_token > q.n_output ? c->n_token : q.n_output;
            if (!q.finish && c->finished)
                q.finish = c->finish;
        }
        request_record_add(j->app->requests, &q);
    }
}

static void job_free(struct task *t)
{
    struct job *j = (struct job *)t;
    if (j->app->requests)
        record_request(j);
    for (size_t i = 0; j->searches && i < j->prompts.n; i++)
        beam_search_free(j->searches[i]);
    q_free(j->searches);
    for (uint32_t i = 0; i < j->n_choice; i++)
        choice_release(&j->choices[i]);
    q_free(j->choices);
    job_release_items(j); /* choices borrow them */
    prompts_release(&j->prompts);
    json_decref(j->body);
    json_decref(j->asked);
    json_decref(j->entries);
    dialect_release(&j->made);
    buf_release(&j->adapters);
    turn_release(&j->turn);
    if (j->arrays)
        params_ids_release(j->arrays);
    q_free(j->arrays);
    kept_stream_free(j->kept);
    buf_release(&j->out);
    q_free(j);
}

static void close_choices(struct job *j)
{
    for (size_t i = 0; j->searches && i < j->prompts.n; i++)
        beam_search_stop(j->searches[i]);
    for (uint32_t i = 0; i < j->n_choice; i++)
        engines_close(j->app->engines, &j->choices[i].generation);
}

/* While the engine is away clients cause such lines at any rate. */
static void log_failed(const struct job *j, const struct q_err *e)
{
    static int64_t last_ms;
    static uint64_t n_skipped;
    if (!log_ratelimit(&last_ms, &n_skipped, FAILED_LOG_MS))
        return;
    log_warning("%s: %s (%" PRIu64 " such lines omitted before)", j->id, e->message, n_skipped);
    n_skipped = 0;
}

/* The dialect for the names in an error; NULL where its own reader found the error: then there is
 * no body. */
static const struct dialect *dialect_of(const struct job *j)
{
    return j->body ? j->dialect : NULL;
}

static enum http_error_form error_form(const struct job *j)
{
    return j->dialect ? j->dialect->error_form : HTTP_ERROR_OPENAI;
}

void job_fail(struct job *j, const struct q_err *e, const char *param, uint32_t retry_after_s)
{
    struct dialect_error told;
    dialect_error_of(&told, dialect_of(j), j->entries, e->message, param);
    struct http_error error = {
        .code = e->code,
        .message = told.message,
        .param = told.param,
        .form = error_form(j),
        .openai_code = j->kept && e->code == Q_NOT_FOUND ? "stream_not_found" : NULL,
        .retry_after_s = retry_after_s,
    };
    if (j->ended)
        return;
    j->ended = true;
    close_choices(j);
    Q_CHECK(job_check(j));
    if (q_code_http(e->code) >= 500)
        log_failed(j, e);
    if (e->code == Q_NO_SPACE || e->code == Q_UNAVAILABLE)
        error.retry_after_s = retry_after_s ? retry_after_s : 1;
    if (!http_stream_started(j->task.x)) {
        http_reply_error(j->task.x, &error);
        return;
    }
    if (j->dialect) {
        dialect_fail(j, &error, &j->out);
    } else {
        buf_reset(&j->out);
        buf_add_str(&j->out, "data: ");
        http_error_body(&j->out, &error);
        buf_add_str(&j->out, "\n\ndata: [DONE]\n\n");
    }
    http_stream_write(j->task.x, buf_str(&j->out), j->out.len);
    http_stream_end(j->task.x);
}

void job_fingerprint(const struct job *j, char out[JOB_FINGERPRINT_MAX])
{
    const struct link_engine *engine =
        j->request.link ? link_engine(j->request.link) : engines_info(j->app->engines);
    struct adapter_entry adapter = j->adapter;
    const bool has = adapter.name && (adapter.fingerprint ||
                                      adapter_list_find(&engine->adapters, adapter.name, &adapter));
    snprintf(out, JOB_FINGERPRINT_MAX, has ? "%s-%s" : "%s", engine->fingerprint,
             has ? adapter.fingerprint : "");
}

void job_note_fingerprint(struct job *j)
{
    char now[JOB_FINGERPRINT_MAX];
    job_fingerprint(j, now);
    size_t n = strlen(j->fingerprints);
    if (!strcmp(j->fingerprints + j->last_fingerprint, now) ||
        n + 1 + strlen(now) >= sizeof j->fingerprints)
        return;
    if (n)
        j->fingerprints[n++] = '+';
    j->last_fingerprint = n;
    snprintf(j->fingerprints + n, sizeof j->fingerprints - n, "%s", now);
}

/* Choose the answers with the highest mean logprob per token, as in OpenAI's API. */
static int by_logprob(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    double mine = x->n_token ? x->logprob_sum / x->n_token : 0,
           other = y->n_token ? y->logprob_sum / y->n_token : 0;
    if (mine != other)
        return mine > other ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void count_longest(const struct job *j)
{
    uint32_t n_token = 0;
    for (uint32_t i = 0; i < j->n_choice; i++)
        if (j->choices[i].n_token > n_token)
            n_token = j->choices[i].n_token;
    metric_observe(METRIC_REQ_MAX_GENERATION, n_token);
}

static void reset_events(struct job *j)
{
    buf_reset(&j->out);
    if (j->kept)
        j->kept->n_old = 0;
}

static void write_events(struct job *j)
{
    const size_t n_old = j->kept ? j->kept->n_old : 0; /* the client has these bytes */
    http_stream_write(j->task.x, buf_str(&j->out) + n_old, j->out.len - n_old);
}

static void job_finish(struct job *j)
{
    struct q_err e = Q_ERR_INIT;
    if (j->kept && kept_stream_check(j, j->kept->n_event + j->params.include_usage + 1, &e)) {
        job_fail(j, &e, NULL, 0);
        return;
    }
    count_longest(j);
    if (j->dialect && j->dialect->fails_if_aborted && !strcmp(j->choices[0].finish, "abort")) {
        enum q_code rc = q_fail(&e, Q_UNAVAILABLE, "the server aborted this request");
        (void)rc; /* in e */
        job_fail(j, &e, NULL, 0);
        return;
    }
    for (size_t i = 0; j->width > j->params.n && i < j->prompts.n; i++)
        qsort(j->choices + i * j->width, j->width, sizeof *j->choices, by_logprob);
    j->ended = true;
    if (j->params.stream) {
        reset_events(j);
        if (j->dialect) {
            j->dialect->end(j, &j->out);
        } else {
            if (j->params.include_usage)
                response_usage_chunk(j, &j->out);
            kept_stream_event(j, &j->out); /* also to a client that has all events */
            buf_add_str(&j->out, "[DONE]\n\n");
        }
        write_events(j);
        http_stream_end(j->task.x);
        return;
    }
    struct buf body = BUF_INIT;
    if (j->dialect) {
        dialect_take(j, &j->choices[0], NULL);
        j->dialect->whole(j, &body);
        body.failed = body.failed ? body.failed : j->made.failed;
    } else {
        response_body(j, &body);
    }
    if (buf_check(&body, "the answer", &e) == Q_OK) {
        http_reply(j->task.x, 200, "application/json", &body);
        return;
    }
    buf_release(&body);
    j->ended = false;
    job_fail(j, &e, NULL, 0);
}

void job_progress(struct job *j, struct choice *c)
{
    Q_CHECK(job_check(j));
    if (j->ended)
        return;
    if (j->params.stream) {
        struct q_err e = Q_ERR_INIT;
        reset_events(j);
        if (j->dialect)
            dialect_take(j, c, &j->out);
        else
            response_chunks(j, c, &j->out);
        if (buf_check(&j->out, "an event", &e) != Q_OK) {
            job_fail(j, &e, NULL, 0);
            return;
        }
        write_events(j);
    }
    if (c->finished && !c->closed) {
        c->closed = true;
        j->n_finished++;
    }
    if (j->n_finished == j->n_choice)
        job_finish(j);
}

/* truncate_prompt_tokens; -1 leaves room for the requested answer, or for one token. */
static enum q_code cut_prompts(struct job *j, uint32_t limit, struct q_err *e)
{
    uint32_t answer = j->sampling.max_tokens ? j->sampling.max_tokens : 1;
    int64_t n = j->params.truncate_prompt_tokens;
    if (!n || (n < 0 && answer >= limit))
        return Q_OK;
    if (n > limit) {
        snprintf(j->params.param, sizeof j->params.param, "truncate_prompt_tokens");
        return q_fail(e, Q_INVALID,
                      "truncate_prompt_tokens: %lld exceeds the model's maximum context length, %u",
                      (long long)n, limit);
    }
    bool left = !j->params.truncation_side || !strcmp(j->params.truncation_side, "left");
    const size_t n_kept = n < 0 ? limit - answer : (size_t)n;
    if (j->positions && j->prompts.items->ids.n > n_kept) {
        snprintf(j->params.param, sizeof j->params.param, "truncate_prompt_tokens");
        return q_fail(
            e, Q_UNSUPPORTED,
            "truncate_prompt_tokens: not supported for messages with inputs besides text: "
            "the prompt has %zu tokens, %zu would be left",
            j->prompts.items->ids.n, n_kept);
    }
    prompts_truncate(&j->prompts, n_kept, left);
    return Q_OK;
}

/* Set max_tokens when the lengths of the prompts are known. */
static enum q_code fit(struct job *j, struct q_err *e)
{
    uint32_t limit = app_max_model_len(j->app), room, longest = 0;
    const struct generation_defaults *d = served_model_defaults(&j->app->served);
    uint32_t asked = j->sampling.max_tokens;
    if (j->params.use_beam_search && j->sampling.grammar) {
        snprintf(j->params.param, sizeof j->params.param, "use_beam_search");
        return q_fail(e, Q_UNSUPPORTED,
                      "use_beam_search: not supported together with structured output");
    }
    enum q_code rc = cut_prompts(j, limit, e);
    if (rc != Q_OK)
        return rc;
    for (size_t i = 0; i < j->prompts.n; i++)
        longest =
            j->prompts.items[i].ids.n > longest ? (uint32_t)j->prompts.items[i].ids.n : longest;
    const char *what = j->chat ? "messages" : "prompt";
    if ((rc = turn_check_length(what, longest, asked, limit, e)) != Q_OK) {
        j->too_long = true;
        snprintf(j->params.param, sizeof j->params.param, "%s", what);
        return rc;
    }
    room = limit - longest;
    j->fits_max_tokens = !asked;
    if (!asked && d && d->has_max_new_tokens && d->max_new_tokens > 0 && d->max_new_tokens < room &&
        j->chat)
        asked = (uint32_t)d->max_new_tokens;
    if (!asked)
        asked = j->chat || room < TEXT_MAX_TOKENS ? room : TEXT_MAX_TOKENS;
    j->sampling.max_tokens = asked;
    if ((rc = job_fit_answer(j, longest, e)) != Q_OK)
        return rc;
    asked = j->sampling.max_tokens;
    if (j->sampling.min_tokens > asked) {
        snprintf(j->params.param, sizeof j->params.param, "min_tokens");
        return q_fail(e, Q_INVALID, "min_tokens: %u is greater than max_tokens, %u",
                      j->sampling.min_tokens, asked);
    }
    return Q_OK;
}

static enum q_code open_searches(struct job *j, struct q_err *e)
{
    enum q_code rc = Q_OK;
    j->searches = q_calloc(j->prompts.n, sizeof *j->searches);
    if (!j->searches)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu beam searches", j->prompts.n);
    for (size_t i = 0; rc == Q_OK && i < j->prompts.n; i++)
        rc = beam_search_new(&j->searches[i], j, (uint32_t)i * j->width, e);
    return rc;
}

/* Refuse what the engine could not have at once, however long its client waits. */
static FALLIBLE check_fits(const struct job *j, size_t n, struct q_err *e)
{
    const struct link_engine *g = engines_info(j->app->engines);
    if (n > CHOICES_MAX)
        return q_fail(e, Q_TOO_LARGE,
                      "n: %zu choices (prompts times n or best_of), expected at most %d", n,
                      CHOICES_MAX);
    if (g->max_num_reqs && n > g->max_num_reqs && !(j->kept && j->kept->resumed))
        return q_fail(e, Q_INVALID,
                      "n: %zu choices (prompts times n or best_of), expected at most %u: so many "
                      "may run (%u, --max-num-seqs) and wait (--max-num-queued-reqs)",
                      n, g->max_num_reqs, g->max_num_seqs);
    uint64_t n_byte = 0;
    for (size_t i = 0; i < j->prompts.n; i++) {
        const struct item_wire *items = job_items_of(j, i);
        n_byte += items ? j->width * items->n_data * sizeof *items->data : 0;
    }
    if (g->item_credit && n_byte > g->item_credit)
        return q_fail(e, Q_TOO_LARGE,
                      "multi_modal_data: %" PRIu64 " bytes in %zu choices exceed the engine's "
                      "memory for items, %" PRIu64 " bytes (--mm-processor-cache-gb)",
                      n_byte, n, g->item_credit);
    return Q_OK;
}

/* The choices of a prompt are opened one after the other: the first computes the prompt, the others
 * find its blocks in the prefix cache. */
static enum q_code open_choices(struct job *j, struct q_err *e)
{
    size_t n = j->prompts.n * (size_t)j->width;
    enum q_code rc = check_fits(j, n, e);
    if (rc)
        return rc;
    j->choices = q_calloc(n, sizeof *j->choices);
    if (!j->choices)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu choices", n);
    j->request.n = j->params.use_beam_search ? 0 : (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct choice *c = &j->choices[i];
        const bool opens = !j->params.use_beam_search && !(j->kept && j->kept->resumed);
        j->n_choice++;
        if ((rc = choice_init(c, j, (uint32_t)i, e)) ||
            (opens && (rc = engines_open(j->app->engines, &c->generation, e))))
            return rc;
        if (j->params.echo && j->logprobs)
            logprobs_first(c);
        metric_observe(METRIC_REQ_MAX_TOKENS, j->sampling.max_tokens);
    }
    metric_observe(METRIC_REQ_N, (double)j->params.n);
    if (j->kept && j->kept->resumed)
        return kept_stream_replay(j, e);
    return j->params.use_beam_search ? open_searches(j, e) : Q_OK;
}

static void refuse(struct job *j, const struct q_err *e)
{
    struct dialect_error told;
    dialect_error_of(&told, dialect_of(j), j->entries, e->message, j->params.param);
    j->ended = true;
    http_reply_error(j->task.x, &(struct http_error){
                                    .code = e->code,
                                    .message = told.message,
                                    .param = told.param,
                                    .form = error_form(j),
                                    .openai_code = j->too_long ? "context_length_exceeded"
                                                   : e->code == Q_NOT_FOUND ? "model_not_found"
                                                                            : NULL,
                                });
}

static enum q_code job_encode(struct job *j, struct q_err *e)
{
    const struct served_model *s = &j->app->served;
    enum q_code rc = Q_OK;
    if (j->chat)
        rc = prompts_render(&j->prompts, &j->turn, e);
    if (rc == Q_OK && !j->params.truncate_prompt_tokens) {
        rc = prompts_check_bytes(&j->prompts, s, j->max_model_len, j->chat ? "messages" : "prompt",
                                 e);
        j->too_long = rc != Q_OK;
    }
    if (rc == Q_OK)
        rc = prompts_encode(&j->prompts, s, j->params.add_special_tokens, e);
    if (rc == Q_OK)
        rc = job_take_parts(j, e);
    if (rc == Q_OK)
        return params_bad_words(&j->params, s->tokenizer, &j->sampling, j->arrays, e);
    snprintf(j->params.param, sizeof j->params.param, "%s",
             !strncmp(e->message, "chat_template:", 14) ? "chat_template"
             : j->chat                                  ? "messages"
                                                        : "prompt");
    return rc;
}

static enum q_code read_chat(struct job *j, struct q_err *e)
{
    const struct served_model *s = &j->app->served;
    struct turn_ask ask = prompts_ask(s, &j->params, &j->sampling);
    ask.item_types = &j->item_types;
    ask.item_rules = job_item_rules(j->app);
    enum q_code rc = turn_read(&j->turn, &s->chat, &ask, e);
    if (rc != Q_OK)
        snprintf(j->params.param, sizeof j->params.param, "%s", j->turn.field);
    else
        structured_calls(&j->turn.tags, &j->sampling);
    return rc;
}

static enum q_code read_text(struct job *j, struct q_err *e)
{
    const struct app *a = j->app;
    enum q_code rc = prompts_read(&j->prompts, j->params.prompt, &a->served, j->takes_items, e);
    if (rc != Q_OK) {
        snprintf(j->params.param, sizeof j->params.param, "prompt");
        return rc;
    }
    if (j->params.echo && j->logprobs && j->sampling.n_prompt_logprob == SAMPLE_NO_LOGPROBS)
        j->sampling.n_prompt_logprob = j->sampling.n_logprob;
    return job_read_items(j, e);
}

static enum q_code check_max_tokens(struct job *j, struct q_err *e)
{
    bool zero = j->params.has[FIELD_max_tokens] && j->params.max_tokens == 0 &&
                !j->params.has[FIELD_max_completion_tokens];
    if (!zero)
        return Q_OK;
    if (j->params.echo) { /* score the prompt only; one token is the minimum of an engine */
        j->no_output = true;
        j->sampling.max_tokens = 1;
        j->sampling.min_tokens = 0;
        return Q_OK;
    }
    snprintf(j->params.param, sizeof j->params.param, "max_tokens");
    return q_fail(e, Q_INVALID, "max_tokens: must be at least 1, got 0");
}

/* Clients of Anthropic's API set a limit whatever the model is: it has no effect on one whose
 * reasoning is not known. */
static enum q_code check_thinking(struct job *j, struct q_err *e)
{
    const struct served_model *s = &j->app->served;
    struct params *p = &j->params;
    enum q_code rc = p->has[FIELD_thinking_token_budget]
                         ? thinking_words_check(&s->chat, s->tokenizer, e)
                         : Q_OK;
    if (rc == Q_UNSUPPORTED && j->dialect == &anthropic_dialect) {
        p->has[FIELD_thinking_token_budget] = false;
        q_err_reset(e);
        return Q_OK;
    }
    if (rc)
        snprintf(p->param, sizeof p->param, "thinking_token_budget");
    return rc;
}

static enum q_code job_read(struct job *j, struct q_err *e)
{
    const struct app *a = j->app;
    struct params_context context = {served_model_defaults(&a->served), a->served.config.vocab_size,
                                     a->options->max_logprobs};
    struct params *p = &j->params;
    enum q_code rc;
    if ((rc = json_body(&j->body, j->task.text.data, j->task.text.n, e)) != Q_OK)
        return rc;
    if (j->dialect) {
        j->asked = j->body;
        j->body = NULL;
        if ((rc = j->dialect->read(&j->body, &j->entries, j->asked, e)) != Q_OK) {
            params_note_field(p, e);
            return rc;
        }
    }
    const char *model = json_string_value(json_object_get(j->body, "model"));
    rc = served_model_find_name(&a->served, model, &j->adapters, &j->adapter, e);
    if (rc == Q_NOT_FOUND && !j->knows_adapters) { /* the engine will say whether it has one */
        j->adapter = (struct adapter_entry){.name = model};
        q_err_reset(e);
        rc = Q_OK;
    }
    if (rc) {
        snprintf(p->param, sizeof p->param, "model");
        return rc;
    }
    if ((rc = params_read(p, j->body, j->chat ? WHERE_CHAT : WHERE_TEXT, e)) != Q_OK)
        return rc;
    if ((rc = unknown_check(&p->unknown, a->options->strict_fields, e)) != Q_OK) {
        snprintf(p->param, sizeof p->param, "%.63s", p->unknown.first);
        return rc;
    }
    if ((rc = reply_id_take(j->id, j->n_id_prefix, p->request_id, e)) != Q_OK) {
        params_note_field(p, e);
        return rc;
    }
    if (p->stream && a->options->enable_force_include_usage)
        p->include_usage = true;
    if (!p->has[FIELD_return_tokens_as_token_ids])
        p->return_tokens_as_token_ids = a->options->return_tokens_as_token_ids;
    j->model = p->model && *p->model ? p->model : a->served.names[0];
    j->arrays = q_calloc(1, sizeof *j->arrays);
    if (!j->arrays)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the request");
    if ((rc = params_sampling(p, &context, &j->sampling, j->arrays, e)) ||
        (rc = params_stops(p, j->stops, &j->n_stop, e)) || (rc = check_max_tokens(j, e)) ||
        (rc = check_thinking(j, e)))
        return rc;
    if (j->kept)
        j->sampling.seed = j->kept->seed;
    j->logprobs = j->sampling.n_logprob != SAMPLE_NO_LOGPROBS;
    j->width = (uint32_t)(p->best_of > p->n ? p->best_of : p->n);
    if (j->width > p->n && !j->logprobs)
        j->sampling.n_logprob = 0; /* to tell which are best */
    if (j->n_stop && (!a->served.tokenizer || !p->detokenize)) {
        snprintf(p->param, sizeof p->param, "stop");
        return q_fail(e, Q_UNSUPPORTED, "stop: requires text, but %s; use stop_token_ids",
                      p->detokenize ? "this server runs with --skip-tokenizer-init"
                                    : "\"detokenize\" is false");
    }
    return j->chat ? read_chat(j, e) : read_text(j, e);
}

static enum q_code job_prepare(struct task *t, struct q_err *e)
{
    struct job *j = (struct job *)t;
    enum q_code rc = job_read(j, e);
    return rc == Q_OK ? job_encode(j, e) : rc;
}

static enum q_code find_tenant(struct job *j, struct q_err *e)
{
    unsigned char key[32];
    const struct tenant_source from = {
        .digest = j->app->served.digest,
        .key = http_key(j->task.x, key) ? key : NULL,
        .user = j->params.user,
        .salt = j->params.cache_salt,
        .apart = j->app->options->prefix_cache_per_key,
    };
    j->weight = http_key_weight(j->task.x);
    return tenant_of(&j->tenant, &from, e);
}

/* The prompts are encoded: submit them to the engine, or reject the request. */
static void job_prepared(struct task *t, const struct q_err *error)
{
    struct job *j = (struct job *)t;
    struct q_err e = Q_ERR_INIT;
    char both[UNKNOWN_BOTH_MAX];
    const char *warning = unknown_warning(&j->params.unknown, both);
    if (warning)
        http_warn(t->x, warning);
    if (error->code == Q_OK && engines_info(j->app->engines)->refusing) {
        enum q_code rc = q_fail(&e, Q_UNAVAILABLE, "generation is paused; retry after it resumes");
        (void)rc;
        job_fail(j, &e, NULL, PAUSED_RETRY_S);
        return;
    }
    if (error->code == Q_OK && app_check_key(j->app, t->x, j->adapter.name, &e) != Q_OK)
        snprintf(j->params.param, sizeof j->params.param, "model");
    if (error->code != Q_OK || e.code != Q_OK || fit(j, &e) != Q_OK || find_tenant(j, &e) != Q_OK ||
        kept_stream_begin(j, &e) != Q_OK) {
        refuse(j, error->code != Q_OK ? error : &e);
        return;
    }
    if (j->params.stream)
        http_stream_start(j->task.x);
    if (open_choices(j, &e) != Q_OK)
        job_fail(j, &e, NULL, 0);
    else
        Q_CHECK(job_check(j));
}

static const struct task_calls job_calls = {job_prepare, job_prepared, job_free};

/* NULL: no memory, and the exchange is answered. */
static struct job *job_new(struct app *a, struct http_exchange *x, bool chat)
{
    struct job *j = q_calloc(1, sizeof *j);
    if (!j) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_NO_MEMORY,
                                .message = "out of memory for the request",
                            });
        return NULL;
    }
    j->app = a;
    j->chat = chat;
    const struct buf *adapters = &engines_info(a->engines)->adapters;
    buf_add(&j->adapters, buf_str(adapters), adapters->len);
    j->knows_adapters = engines_info(a->engines)->instance != 0;
    app_item_types(a, &j->item_types); /* read here: a thread must not access the link */
    j->takes_items = j->item_types.unknown || engines_info(a->engines)->item_credit;
    j->max_model_len = app_max_model_len(a);
    j->created = clock_unix();
    j->arrived_us = clock_us();
    return j;
}

void job_start(struct app *a, struct http_exchange *x, bool chat)
{
    if (pool_refuses(a, x, POOL_NOT) || !app_available(a, x, chat ? on_chat : on_completions))
        return;
    if (http_header(x, "last-event-id").n) {
        resume_start(a, x);
        return;
    }
    struct job *j = job_new(a, x, chat);
    if (!j)
        return;
    j->n_id_prefix = reply_id_make(j->id, chat ? "chatcmpl-" : "cmpl-", x);
    task_start(&j->task, &job_calls, &a->tasks, x);
}

void job_start_dialect(struct app *a, struct http_exchange *x, const struct dialect *dialect,
                       http_handler *again)
{
    if (pool_refuses(a, x, POOL_NOT) || !app_available(a, x, again))
        return;
    struct job *j = job_new(a, x, true);
    if (!j)
        return;
    j->dialect = dialect;
    j->n_id_prefix = reply_id_make(j->id, dialect->id_prefix, x);
    task_start(&j->task, &job_calls, &a->tasks, x);
}

void job_resume(struct app *a, struct http_exchange *x, struct link *from,
                const struct msg_stream_resumed *m, struct kept_stream *k)
{
    struct q_err e = Q_ERR_INIT;
    const struct stream_columns columns = {m->rows, m->tokens, m->logprob_ids, m->logprobs,
                                           m->ranks};
    struct job *j = job_new(a, x, m->chat);
    if (!j) {
        kept_stream_free(k);
        return;
    }
    k->n_resume = m->n_resume;
    k->seed = m->seed;
    k->keep_ms = m->keep_ms;
    k->resumed = true;
    k->kept_by = link_engine(from)->instance;
    j->request.link = from;
    j->kept = k;
    j->created = (int64_t)m->created;
    snprintf(j->id, sizeof j->id, "%.*s",
             m->response_id.n < sizeof j->id ? (int)m->response_id.n : (int)sizeof j->id - 1,
             m->response_id.n ? m->response_id.data : "");
    buf_add(&j->task.copy, m->body.data, m->body.n);
    if (stream_log_read(&k->log, &columns, &e) || buf_check(&j->task.copy, "a stream", &e)) {
        app_reply_error(x, &e, NULL);
        buf_release(&j->task.copy);
        job_free(&j->task);
        return;
    }
    task_start(&j->task, &job_calls, &a->tasks, x);
}

void on_chat(void *app, struct http_exchange *x)
{
    job_start(app, x, true);
}

void on_completions(void *app, struct http_exchange *x)
{
    job_start(app, x, false);
}

void on_messages(void *app, struct http_exchange *x)
{
    job_start_dialect(app, x, &anthropic_dialect, on_messages);
}

void on_responses(void *app, struct http_exchange *x)
{
    job_start_dialect(app, x, &responses_dialect, on_responses);
}
