/* SPDX-License-Identifier: Apache-2.0 */
/* Each beam has one generation per step. All generations of a step are submitted together, so the
 * engine computes them in one batch; the next step begins when the last one has ended. A beam's
 * tokens are copied from the tree in each step, so beams are never moved. They are sent to the
 * engine as existing output, so that penalties, bad words and similar parameters count them as
 * output. */
#include "frontend/api/beam.h"

#include <string.h>
#include "common/mem.h"
#include "frontend/api/job_internal.h"

#define SILENT_TOKENS 8 /* tokens without text that may occur inside a stop string */

struct beam_generation {
    struct generation generation; /* first: the link returns this pointer */
    struct beam_search *search;
    struct token_list ids; /* the beam's tokens */
    uint32_t *top_ids;     /* [row_size] what may follow */
    float *top_logprobs;
    uint32_t n_top;
};

struct beam_search {
    struct job *job;
    const struct prompt *prompt;
    uint32_t first; /* choice */
    struct beam_tree tree;
    struct beam_generation *generations; /* [width] */
    uint32_t n_pending, n_cached;
    bool stopped;
    uint32_t ends[SAMPLE_STOP_IDS_MAX + 16];
    size_t n_window; /* number of last tokens that a stop string can contain */
    struct token_list window;
    struct buf text; /* of the window */
};

static FALLIBLE next_step(struct beam_search *b, struct q_err *e);

static void fail(struct beam_search *b, const struct q_err *e, uint32_t retry_after_s)
{
    beam_search_stop(b);
    job_fail(b->job, e, e->code == Q_INVALID ? "n" : NULL, retry_after_s);
}

/* Rows as passed by the link: the token, then the requested alternatives. */
static FALLIBLE gather(const struct beam_search *b, const struct beam_end *end,
                       struct token_list *ids, struct logprob_rows *rows, struct q_err *e)
{
    const struct beam_tree *t = &b->tree;
    uint32_t n = b->job->sampling.n_logprob + 1, depth = t->nodes[end->node].depth;
    enum q_code rc = beam_tokens(t, end->node, ids, e);
    if (rc != Q_OK || b->job->sampling.n_logprob == SAMPLE_NO_LOGPROBS)
        return rc;
    if (n > t->row_size + 1)
        n = t->row_size + 1;
    uint32_t *row_ids = q_calloc((size_t)depth * n, sizeof *row_ids);
    float *logprobs = q_calloc((size_t)depth * n, sizeof *logprobs);
    uint32_t *ranks = q_calloc(depth, sizeof *ranks);
    *rows = (struct logprob_rows){depth, n, row_ids, logprobs, ranks};
    if (!row_ids || !logprobs || !ranks)
        return q_fail(e, Q_NO_MEMORY, "beam search: out of memory for logprobs");
    uint32_t node = end->node;
    for (uint32_t i = depth; i-- > 0; node = t->nodes[node].parent) {
        const struct beam_node *k = &t->nodes[node];
        row_ids[(size_t)i * n] = k->token;
        logprobs[(size_t)i * n] = k->logprob;
        ranks[i] = k->rank;
        memcpy(row_ids + (size_t)i * n + 1, t->row_ids + (size_t)k->row * t->row_size,
               (n - 1) * sizeof *row_ids);
        memcpy(logprobs + (size_t)i * n + 1, t->row_logprobs + (size_t)k->row * t->row_size,
               (n - 1) * sizeof *logprobs);
    }
    return Q_OK;
}

static FALLIBLE give(struct beam_search *b, uint32_t i, struct q_err *e)
{
    const struct beam_end *end = &b->tree.ended[i];
    struct token_list ids = TOKEN_LIST_INIT;
    struct logprob_rows rows = {0};
    enum q_code rc = gather(b, end, &ids, &rows, e);
    if (rc == Q_OK) {
        struct generation *f = &b->job->choices[b->first + i].generation;
        const struct link_tokens t = {
            .ids = ids.ids,
            .n = (uint32_t)ids.n,
            .logprobs = rows,
            .finish = end->stopped ? FINISH_STOP : FINISH_LENGTH,
            .n_cached = b->n_cached,
        };
        choice_calls.on_tokens(f, &t);
    }
    token_list_release(&ids);
    q_free((void *)(uintptr_t)rows.ids);
    q_free((void *)(uintptr_t)rows.logprobs);
    q_free((void *)(uintptr_t)rows.ranks);
    return rc;
}

static FALLIBLE finish(struct beam_search *b, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (b->tree.n_ended < b->tree.rules.width)
        return q_fail(e, Q_INVALID, "n: only %u of %u answers are possible with the allowed tokens",
                      b->tree.n_ended, b->tree.rules.width);
    for (uint32_t i = 0; rc == Q_OK && i < b->tree.n_ended && !b->stopped; i++)
        rc = give(b, i, e);
    return rc;
}

/* All generations of a step have ended. */
static void end_step(struct beam_search *b)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0, n = b->tree.n_beam; rc == Q_OK && i < n; i++)
        rc = beam_offer(&b->tree, b->generations[i].top_ids, b->generations[i].top_logprobs,
                        b->generations[i].n_top, &e);
    if (rc == Q_OK && (rc = beam_advance(&b->tree, &e)) == Q_OK)
        rc = b->tree.over ? finish(b, &e) : next_step(b, &e);
    if (rc != Q_OK)
        fail(b, &e, 0);
}

static void on_tokens(struct generation *f, const struct link_tokens *t)
{
    struct beam_generation *mine = (struct beam_generation *)f;
    struct beam_search *b = mine->search;
    struct q_err e = Q_ERR_INIT;
    if (t->n)
        job_note_fingerprint(b->job);
    if (t->n_cached && !b->n_cached && b->tree.n_row == 0)
        b->n_cached = t->n_cached;
    if (t->n && t->logprobs.n > 1) { /* the first entry is the sampled token */
        mine->n_top = t->logprobs.n - 1 < b->tree.row_size ? t->logprobs.n - 1 : b->tree.row_size;
        memcpy(mine->top_ids, t->logprobs.ids + 1, mine->n_top * sizeof *mine->top_ids);
        memcpy(mine->top_logprobs, t->logprobs.logprobs + 1,
               mine->n_top * sizeof *mine->top_logprobs);
    }
    if (t->finish == FINISH_NONE)
        return;
    if (t->finish == FINISH_ABORT) {
        enum q_code rc = q_fail(&e, Q_UNAVAILABLE, "beam search aborted: the engine was paused");
        (void)rc;
        fail(b, &e, 0);
    } else if (!mine->n_top) {
        enum q_code rc = q_fail(&e, Q_INTERNAL, "the engine failed to compute this request");
        (void)rc;
        fail(b, &e, 0);
    } else if (--b->n_pending == 0) {
        end_step(b);
    }
}

static void on_error(struct generation *f, enum q_code code, const char *message,
                     uint32_t retry_after_ms)
{
    struct beam_search *b = ((struct beam_generation *)f)->search;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = q_fail(&e, code, "%s", message);
    (void)rc;
    fail(b, &e, (retry_after_ms + 999) / 1000);
}

static void on_expanded(struct generation *f, const uint32_t *positions, const uint32_t *n_token,
                        size_t n)
{
    struct beam_search *b = ((struct beam_generation *)f)->search;
    struct q_err e = Q_ERR_INIT;
    if (prompt_expand(b->job->choices[b->first].prompt, positions, n_token, n, &e))
        fail(b, &e, 0);
}

static const struct generation_calls beam_calls = {
    .on_tokens = on_tokens,
    .on_error = on_error,
    .on_expanded = on_expanded,
};

/* Request one token and the most likely alternatives, within the limits of the request. */
static void set_params(const struct beam_search *b, struct sample_params *p, uint32_t n_begun)
{
    const struct sample_params *s = &b->job->sampling;
    sample_params_default(p);
    p->temperature = 0;
    p->max_tokens = n_begun + 1;
    p->ignore_eos = true;
    p->n_logprob = b->tree.row_size;
    p->repetition_penalty = s->repetition_penalty;
    p->presence_penalty = s->presence_penalty;
    p->frequency_penalty = s->frequency_penalty;
    p->bias_ids = s->bias_ids;
    p->bias = s->bias;
    p->n_bias = s->n_bias;
    p->allowed_ids = s->allowed_ids;
    p->n_allowed = s->n_allowed;
    p->bad_words = s->bad_words;
    p->n_bad = s->n_bad;
    p->no_repeat_ngram = s->no_repeat_ngram;
    p->no_repeat_window = s->no_repeat_window;
    p->adjusted_logprobs = s->n_bias || s->n_allowed || s->n_bad || s->no_repeat_ngram ||
                           s->repetition_penalty != 1 || s->presence_penalty != 0 ||
                           s->frequency_penalty != 0;
}

static FALLIBLE open_generation(struct beam_search *b, uint32_t i, struct q_err *e)
{
    const struct generation *like = &b->job->choices[b->first].generation;
    struct beam_generation *f = &b->generations[i];
    enum q_code rc = Q_OK;
    engines_close(b->job->app->engines, &f->generation);
    f->n_top = 0;
    f->ids.n = 0;
    if ((rc = beam_tokens(&b->tree, b->tree.beams[i], &f->ids, e)) != Q_OK)
        return rc;
    f->generation = (struct generation){
        .calls = &beam_calls,
        .prompt = b->prompt->ids.ids,
        .n_prompt = b->prompt->ids.n,
        .begun = f->ids.ids,
        .n_begun = f->ids.n,
        .items = like->items,
        .item_positions = like->item_positions,
        .n_item_position = like->n_item_position,
        .priority = like->priority,
        .tenant = like->tenant,
        .weight = like->weight,
        .adapter = like->adapter,
        .arrived_ms = like->arrived_ms,
        .n_cache_salt = like->n_cache_salt,
        .no_prefix_cache = like->no_prefix_cache,
        .request = like->request,
        .n_shared = like->n_shared,
    };
    memcpy(f->generation.cache_salt, like->cache_salt, sizeof like->cache_salt);
    set_params(b, &f->generation.params, (uint32_t)f->ids.n);
    rc = engines_open(b->job->app->engines, &f->generation, e);
    b->n_pending += rc == Q_OK;
    return rc;
}

static FALLIBLE next_step(struct beam_search *b, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; rc == Q_OK && i < b->tree.n_beam; i++)
        rc = open_generation(b, i, e);
    return rc;
}

/* Does this token complete a stop string? Only the last tokens are checked: each byte of text needs
 * at most one token, apart from tokens without text. */
static bool ends_text(void *ctx, const struct beam_tree *t, const struct beam_node *node)
{
    struct beam_search *b = ctx;
    const struct job *j = b->job;
    const struct tokenizer *tokenizer = j->app->served.tokenizer;
    struct q_err e = Q_ERR_INIT;
    size_t n = node->depth < b->n_window ? node->depth : b->n_window;
    b->window.n = 0;
    buf_reset(&b->text);
    for (size_t i = 0; i < n; i++)
        if (token_list_add(&b->window, 0, &e) != Q_OK)
            return false;
    for (size_t i = n; i-- > 0; node = &t->nodes[node->parent]) {
        b->window.ids[i] = node->token;
        if (i == 0)
            break;
    }
    if (tokenizer_decode(tokenizer, b->window.ids, n, j->params.skip_special_tokens, &b->text,
                         &e) != Q_OK)
        return false;
    for (uint32_t i = 0; i < j->n_stop; i++)
        if (memmem(buf_str(&b->text), b->text.len, j->stops[i], strlen(j->stops[i])))
            return true;
    return false;
}

static FALLIBLE make(struct beam_search *b, struct q_err *e)
{
    const struct job *j = b->job;
    const struct link_engine *engine = engines_info(j->app->engines);
    struct beam_rules rules = {
        .width = (uint32_t)j->params.n,
        .n_prompt = (uint32_t)b->prompt->ids.n,
        .max_tokens = j->sampling.max_tokens,
        .min_tokens = j->sampling.min_tokens,
        .length_penalty = j->params.length_penalty,
        .early_stopping = json_is_true(j->params.early_stopping),
        .ends = b->ends,
    };
    if (!j->sampling.ignore_eos)
        for (; rules.n_end < engine->n_eos; rules.n_end++)
            b->ends[rules.n_end] = engine->eos_ids[rules.n_end];
    for (uint32_t i = 0; i < j->sampling.n_stop_id; i++)
        b->ends[rules.n_end++] = j->sampling.stop_ids[i];
    if (j->n_stop) {
        rules.ends_text = ends_text;
        rules.ctx = b;
        for (uint32_t i = 0; i < j->n_stop; i++)
            if (strlen(j->stops[i]) + SILENT_TOKENS > b->n_window)
                b->n_window = strlen(j->stops[i]) + SILENT_TOKENS;
    }
    b->generations = q_calloc(rules.width, sizeof *b->generations);
    if (!b->generations)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u beams", rules.width);
    for (uint32_t i = 0; i < rules.width; i++) {
        struct beam_generation *f = &b->generations[i];
        f->search = b;
        f->top_ids = q_calloc(2 * (size_t)rules.width, sizeof *f->top_ids);
        f->top_logprobs = q_calloc(2 * (size_t)rules.width, sizeof *f->top_logprobs);
        if (!f->top_ids || !f->top_logprobs)
            return q_fail(e, Q_NO_MEMORY, "out of memory for %u beams", rules.width);
    }
    return beam_tree_init(&b->tree, &rules, e);
}

FALLIBLE beam_search_new(struct beam_search **out, struct job *j, uint32_t first, struct q_err *e)
{
    struct beam_search *b = q_calloc(1, sizeof *b);
    if (!b)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a beam search");
    b->job = j;
    b->window = (struct token_list)TOKEN_LIST_INIT;
    b->text = (struct buf)BUF_INIT;
    b->first = first;
    b->prompt = j->choices[first].prompt;
    *out = b; /* owned by the job from here on, also after an error */
    enum q_code rc = make(b, e);
    return rc == Q_OK ? next_step(b, e) : rc;
}

void beam_search_stop(struct beam_search *b)
{
    if (!b)
        return;
    b->stopped = true;
    for (uint32_t i = 0; b->generations && b->tree.beams && i < b->tree.rules.width; i++)
        engines_close(b->job->app->engines, &b->generations[i].generation);
}

void beam_search_free(struct beam_search *b)
{
    if (!b)
        return;
    beam_search_stop(b);
    for (uint32_t i = 0; b->generations && i < (uint32_t)b->job->params.n; i++) {
        token_list_release(&b->generations[i].ids);
        q_free(b->generations[i].top_ids);
        q_free(b->generations[i].top_logprobs);
    }
    q_free(b->generations);
    token_list_release(&b->window);
    buf_release(&b->text);
    beam_tree_release(&b->tree);
    q_free(b);
}
