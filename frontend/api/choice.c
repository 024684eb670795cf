/* SPDX-License-Identifier: Apache-2.0 */
/* From tokens to text: detokenizer, stop strings, parser; each of them holds back text that may
 * still change. The token that ends a generation (end of text, or one of stop_token_ids) counts,
 * but its text is only shown with include_stop_str_in_output. */
#include <string.h>
#include "common/clock.h"
#include "common/chat/thinking_words.h"
#include "common/metrics.h"
#include "frontend/api/job_internal.h"

#define PROMPT_END_TOKENS 256u /* of a completion's prompt: a tag, and blanks after it */

/* Can reasoning precede the grammar? The engine gets the answer in the submit. */
static bool find_before(struct choice *c)
{
    struct sample_params *p = &c->generation.params;
    turn_before(&c->job->turn, &c->prompt->rendered, &c->before);
    if (c->before.after) {
        p->grammar_after = c->before.after;
        p->n_grammar_after = (uint32_t)strlen(c->before.after);
    } else if (c->before.tags) {
        p->reasoning_tags = c->before.tags->data;
        p->n_reasoning_tags = (uint32_t)c->before.tags->len;
    }
    return c->before.after || c->before.tags;
}

/* The end of a completion's prompt, which may open reasoning. */
static FALLIBLE prompt_end(struct buf *out, const struct choice *c, struct q_err *e)
{
    const struct token_list *ids = &c->prompt->ids;
    const size_t n = ids->n < PROMPT_END_TOKENS ? ids->n : PROMPT_END_TOKENS;
    return tokenizer_decode(c->job->app->served.tokenizer, ids->ids + ids->n - n, n, false, out, e);
}

/* thinking_token_budget, unless the grammar lets no reasoning come. */
static FALLIBLE set_thinking(struct choice *c, bool thinks, struct q_err *e)
{
    const struct job *j = c->job;
    struct sample_params *p = &c->generation.params;
    struct buf end = BUF_INIT;
    const struct buf *prompt = j->chat ? &c->prompt->rendered : &end;
    enum q_code rc = Q_OK;
    if (!j->params.has[FIELD_thinking_token_budget] || (p->grammar && !thinks))
        return Q_OK;
    if (!j->chat)
        rc = prompt_end(&end, c, e);
    const struct thinking_words_args a = {
        .model = &j->app->served.chat,
        .tokenizer = j->app->served.tokenizer,
        .max_tokens = (uint32_t)j->params.thinking_token_budget,
        .prompt = buf_str(prompt),
        .n_prompt = prompt->len,
        .calls = j->turn.tools != NULL,
        .grammar = p->grammar != 0,
    };
    if (!rc)
        rc = thinking_words(&c->thinking, &a, e);
    buf_release(&end);
    p->thinking = c->thinking.ids;
    p->n_thinking = (uint32_t)c->thinking.n;
    return rc;
}

FALLIBLE choice_init(struct choice *c, struct job *j, uint32_t index, struct q_err *e)
{
    const struct tokenizer *t = j->params.detokenize ? j->app->served.tokenizer : NULL;
    enum q_code rc = Q_OK;
    c->job = j;
    c->index = index;
    c->i_stop = -1;
    c->answer.id_seed = j->kept ? j->kept->id : NULL;
    c->answer.id_number = index;
    c->answer.one_call = !j->params.parallel_tool_calls;
    c->answer.no_reasoning = !j->params.include_reasoning;
    c->prompt = &j->prompts.items[index / j->width];
    c->generation.calls = &choice_calls;
    c->generation.prompt = c->prompt->ids.ids;
    c->generation.n_prompt = c->prompt->ids.n;
    c->generation.items = job_items_of(j, index / j->width);
    c->generation.item_positions = j->positions;
    c->generation.n_item_position = j->positions ? j->turn.parts.list.n : 0;
    c->generation.fits_max_tokens = j->fits_max_tokens;
    c->generation.params = j->sampling;
    c->generation.request = &j->request;
    const struct buf *rendered = &c->prompt->rendered;
    bool thinks = j->chat && find_before(c);
    c->generation.priority = (int32_t)j->params.priority;
    c->generation.tenant = j->tenant.id;
    c->generation.weight = j->weight;
    c->generation.adapter = j->adapter.name;
    c->generation.arrived_ms = j->arrived_us / 1000;
    memcpy(c->generation.cache_salt, j->tenant.salt, sizeof j->tenant.salt);
    c->generation.n_cache_salt = j->tenant.n_salt;
    c->generation.n_shared = shared_prompts_match(&j->app->served.shared, &c->prompt->ids);
    c->generation.no_prefix_cache = !j->params.enable_prefix_caching;
    c->generation.stream_id = j->kept ? j->kept->id : NULL;
    c->generation.n_resume = j->kept ? j->kept->n_resume : 0;
    c->generation.choice = index;
    c->generation.params.seed +=
        index % j->width; /* vLLM's rule for the seeds of n answers to one prompt */
    if ((rc = set_thinking(c, thinks, e)) != Q_OK)
        return rc;
    if (j->chat && (rc = turn_parser(&j->turn, rendered, thinks, &c->parser, e)) != Q_OK)
        return rc;
    /* The tags of a format may be special tokens, which the parser needs. */
    if (t && (rc = detok_new(&c->detok, t, j->params.skip_special_tokens && !c->parser, e)) != Q_OK)
        return rc;
    if (j->n_stop)
        rc = stop_new(&c->stop, j->stops, j->n_stop, j->params.include_stop_str_in_output, e);
    return rc;
}

void choice_release(struct choice *c)
{
    if (c->job && !c->finished && !c->job->ended)
        metric_add(METRIC_SUCCESS_ABORT, 1);
    if (c->job)
        engines_close(c->job->app->engines, &c->generation);
    token_list_release(&c->thinking);
    detok_free(c->detok);
    stop_free(c->stop);
    parser_free(c->parser);
    answer_release(&c->answer);
    buf_release(&c->items);
    buf_release(&c->text_items);
    dialect_tokens_release(&c->waiting);
    buf_release(&c->values);
    buf_release(&c->tops);
    buf_release(&c->offsets);
    buf_release(&c->ids);
    buf_release(&c->prompt_rows);
    memset(c, 0, sizeof *c);
}

/* Process text that no stop string can change any more. */
static enum q_code settled(struct choice *c, const struct buf *text, struct q_err *e)
{
    const enum q_code rc = buf_check(text, "the answer", e);
    if (rc)
        return rc;
    if (c->parser)
        return parser_feed(c->parser, buf_str(text), text->len, answer_take, &c->answer, e);
    buf_add(&c->answer.content, buf_str(text), text->len);
    return Q_OK;
}

/* Process new text of the detokenizer. */
static enum q_code add_text(struct choice *c, const struct buf *text, struct q_err *e)
{
    struct buf kept = BUF_INIT;
    enum q_code rc;
    if (!c->stop || text->failed)
        return settled(c, text, e);
    rc = stop_push(c->stop, buf_str(text), text->len, &kept, &c->i_stop, e);
    if (rc == Q_OK)
        rc = settled(c, &kept, e);
    buf_release(&kept);
    return rc;
}

/* Count a token inside reasoning; the end tag does not count. */
static void count_thought(struct choice *c)
{
    enum parser_thinking now = parser_thinking(c->parser);
    c->n_perhaps++;
    if (now == THINKING)
        c->n_thought += c->n_perhaps;
    if (now != THINKING_HELD)
        c->n_perhaps = 0;
}

static enum q_code add_token(struct choice *c, uint32_t id, bool shown, struct q_err *e)
{
    struct buf piece = BUF_INIT;
    enum q_code rc = Q_OK;
    if (c->job->params.return_token_ids || !c->detok)
        buf_printf(&c->ids, "%s%u", c->ids.len ? "," : "", id);
    enum parser_thinking before = c->parser ? parser_thinking(c->parser) : THINKING_NOT;
    const struct dialect_mark mark = dialect_mark(c);
    if (c->detok && shown && (rc = detok_push(c->detok, id, &piece, e)) == Q_OK &&
        (piece.len || piece.failed))
        rc = add_text(c, &piece, e);
    if (before != THINKING_NOT)
        count_thought(c);
    if (rc == Q_OK && c->job->dialect && c->job->logprobs)
        dialect_token(c, &mark, &piece);
    buf_release(&piece);
    return rc;
}

/* No more tokens: flush detokenizer, stop strings and parser. stopped: the model or a stop string
 * ended the text. */
static enum q_code end_text(struct choice *c, bool stopped, struct q_err *e)
{
    struct buf piece = BUF_INIT;
    const struct dialect_mark mark = dialect_mark(c);
    enum q_code rc = Q_OK;
    if (c->detok && c->i_stop < 0 && (rc = detok_flush(c->detok, &piece, e)) == Q_OK &&
        (piece.len || piece.failed))
        rc = add_text(c, &piece, e);
    buf_reset(&piece);
    if (rc == Q_OK && c->stop && (rc = stop_flush(c->stop, &piece, e)) == Q_OK &&
        (piece.len || piece.failed))
        rc = settled(c, &piece, e);
    if (c->parser && !stopped)
        parser_cut(c->parser);
    if (rc == Q_OK && c->parser)
        rc = parser_finish(c->parser, answer_take, &c->answer, e);
    if (rc == Q_OK)
        dialect_settle(c, &mark);
    buf_release(&piece);
    return rc;
}

/* Time from the first step, as known to the frontend, to the first token. */
static double prefill_seconds(const struct choice *c)
{
    double seconds = (double)(c->first_us - c->job->arrived_us - c->queue_us) / 1e6;
    return seconds > 0 ? seconds : 0;
}

static void count_finish(const struct choice *c, enum finish_reason reason)
{
    static const enum metric success[] = {
        [FINISH_NONE] = METRIC_SUCCESS_STOP,     [FINISH_STOP] = METRIC_SUCCESS_STOP,
        [FINISH_LENGTH] = METRIC_SUCCESS_LENGTH, [FINISH_ABORT] = METRIC_SUCCESS_ABORT,
        [FINISH_ERROR] = METRIC_SUCCESS_ERROR,
    };
    double seconds = (double)(c->last_us - c->first_us) / 1e6;
    metric_add(success[reason], 1);
    if (reason ==
        FINISH_ERROR) /* the only reason for which the engine ends an answer with output this way */
        metric_add(METRIC_CORRUPTED, 1);
    metric_observe(METRIC_E2E, (double)(clock_us() - c->job->arrived_us) / 1e6);
    metric_observe(METRIC_DECODE, seconds);
    metric_observe(METRIC_INFERENCE, seconds + prefill_seconds(c));
    metric_observe(METRIC_REQ_PROMPT, (double)prompt_ids(c->prompt)->n);
    metric_observe(METRIC_REQ_GENERATION, c->n_token);
    if (c->n_token > 1)
        metric_observe(METRIC_TPOT, seconds / (c->n_token - 1));
}

static void count_tokens(struct choice *c, const struct link_tokens *t)
{
    int64_t now = clock_us();
    if (t->n == 0)
        return;
    if (c->first_us == 0) {
        c->first_us = now;
        metric_observe(METRIC_TTFT, (double)(now - c->job->arrived_us) / 1e6);
        c->queue_us = (int64_t)t->queue_us;
        metric_observe(METRIC_QUEUE, (double)t->queue_us / 1e6);
        metric_observe(METRIC_PREFILL, prefill_seconds(c));
        metric_add(METRIC_PROMPT_CACHED, t->n_cached);
        metric_add(METRIC_PROMPT_FROM_CACHE, t->n_cached);
        metric_add(METRIC_PROMPT_FROM_COMPUTE, (double)prompt_ids(c->prompt)->n - t->n_cached);
        metric_observe(METRIC_REQ_PREFILL_KV, (double)prompt_ids(c->prompt)->n - t->n_cached);
        metric_add(METRIC_PROMPT_TOKENS, (double)prompt_ids(c->prompt)->n);
    } else {
        metric_observe(METRIC_ITL, (double)(now - c->last_us) / 1e6);
    }
    c->last_us = now;
    metric_add(METRIC_GENERATION_TOKENS, t->n);
}

/* The tokens are those of an earlier connection, and were counted then. */
static bool is_replay(const struct job *j)
{
    return j->kept && j->kept->replaying;
}

static void finish(struct choice *c, const struct link_tokens *t)
{
    bool stopped = t->finish == FINISH_STOP || c->i_stop >= 0;
    c->finished = true;
    c->stop_id = c->i_stop < 0 ? t->stop_id : 0;
    c->finish = stopped                      ? "stop"
                : t->finish == FINISH_LENGTH ? "length"
                : t->finish == FINISH_ABORT  ? "abort"
                                             : "error";
    if (stopped && answer_has_calls(&c->answer))
        c->finish = "tool_calls";
    if (!is_replay(c->job))
        count_finish(c, stopped ? FINISH_STOP : t->finish);
    engines_close(c->job->app->engines, &c->generation);
}

static enum q_code take_tokens(struct choice *c, const struct link_tokens *t, struct q_err *e)
{
    enum q_code rc = Q_OK;
    bool hidden_end = t->finish == FINISH_STOP && !c->job->params.include_stop_str_in_output;
    for (uint32_t i = 0; rc == Q_OK && i < t->n && c->i_stop < 0; i++) {
        c->n_token++;
        if (c->job->no_output)
            continue;
        if (t->logprobs.n)
            c->logprob_sum += (double)t->logprobs.logprobs[(size_t)i * t->logprobs.n];
        if (t->logprobs.n && c->job->logprobs)
            logprobs_token(c, &t->logprobs, i, t->ids[i]);
        rc = add_token(c, t->ids[i], !(hidden_end && i + 1 == t->n), e);
    }
    return rc;
}

/* All that an answer is made of is there. Errors: Q_NO_MEMORY, Q_TOO_LARGE. */
static FALLIBLE check_output(const struct choice *c, struct q_err *e)
{
    const struct buf *const all[] = {
        &c->answer.content, &c->items,   &c->text_items, &c->values,
        &c->tops,           &c->offsets, &c->ids,        &c->prompt_rows};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        rc = buf_check(all[i], "the answer", e);
    return rc;
}

static void on_tokens(struct generation *f, const struct link_tokens *t)
{
    struct choice *c = (struct choice *)f;
    struct job *j = c->job;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc;
    kept_stream_note(j, c, t);
    if (!is_replay(j))
        count_tokens(c, t);
    if (t->n || t->prompt.n_row)
        job_note_fingerprint(j);
    if (t->n_cached && !c->n_cached &&
        !c->n_token) /* after a resubmission the number would include tokens of the first run */
        c->n_cached = t->n_cached;
    if (t->prompt.n)
        logprobs_prompt(c, &t->prompt);
    rc = take_tokens(c, t, &e);
    if (rc == Q_OK && (c->i_stop >= 0 || t->finish != FINISH_NONE)) {
        rc = end_text(c, c->i_stop >= 0 || t->finish == FINISH_STOP, &e);
        finish(c, t);
    }
    if (rc == Q_OK && t->finish == FINISH_ERROR)
        rc = q_fail(&e, Q_INTERNAL, "the engine failed to compute this request");
    if (rc == Q_OK)
        rc = check_output(c, &e);
    if (rc != Q_OK)
        job_fail(j, &e, NULL, 0);
    else
        job_progress(j, c);
}

static void on_error(struct generation *f, enum q_code code, const char *message,
                     uint32_t retry_after_ms)
{
    struct choice *c = (struct choice *)f;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = q_fail(&e, code, "%s", message);
    (void)rc;
    const char *param = strncmp(message, "tools: ", 7) ? NULL : "tools"; /* a schema of theirs */
    metric_add(METRIC_SUCCESS_ERROR, 1);
    job_fail(c->job, &e, param, (retry_after_ms + 999) / 1000);
}

/* Usage, echo, prompt_logprobs and prompt_token_ids are of the expanded prompt. */
static void on_expanded(struct generation *f, const uint32_t *positions, const uint32_t *n_token,
                        size_t n)
{
    struct choice *c = (struct choice *)f;
    struct q_err e = Q_ERR_INIT;
    if (prompt_expand(c->prompt, positions, n_token, n, &e))
        job_fail(c->job, &e, NULL, 0);
}

static void on_submit(struct generation *f)
{
    kept_stream_submit(((struct choice *)f)->job, f->link);
}

const struct generation_calls choice_calls = {
    .on_tokens = on_tokens,
    .on_error = on_error,
    .on_expanded = on_expanded,
    .on_submit = on_submit,
};
