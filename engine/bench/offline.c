/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/offline.h"
#include <math.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/bench/stats.h"

#define ARGS_MAX 64

enum q_code offline_fail(const struct quire_error *error, const char *what, struct q_err *e)
{
    enum q_code code = error->code == QUIRE_INVALID || error->code == QUIRE_NOT_FOUND ? Q_INVALID
                       : error->code == QUIRE_NO_MEMORY                               ? Q_NO_MEMORY
                       : error->code == QUIRE_UNSUPPORTED ? Q_UNSUPPORTED
                                                          : Q_INTERNAL;
    return q_fail(e, code, "%s%s%s", what, *what ? ": " : "", error->message);
}

static FALLIBLE set(struct quire_options *q, const char *name, const char *value, struct q_err *e)
{
    struct quire_error error;
    if (quire_options_set(q, name, value, &error) != QUIRE_OK)
        return q_fail(e, Q_INVALID, "%s", error.message);
    return Q_OK;
}

/* Options that do not apply to a reference engine. */
static bool is_lossy(const char *flag)
{
    static const char *const flags[] = {"--dtype", "--quantization", "--kv-cache-dtype",
                                        "--speculative-config"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(flag, flags[i]))
            return true;
    return false;
}

/* The given options that an engine takes, "--flag=value" each, are cut at the '='. */
static FALLIBLE set_given(struct quire_options *q, const struct bench *b,
                          const struct offline_need *need, struct q_err *e)
{
    char *args[ARGS_MAX];
    uint32_t n = 0;
    enum q_code rc = options_forward(&b->o, FOR_LIBRARY, args, &n, ARGS_MAX, e);
    for (uint32_t i = 0; i < n && !rc; i++) {
        char *value = strchr(args[i], '=');
        *value++ = '\0';
        if (!(need->plain && is_lossy(args[i])))
            rc = set(q, args[i], value, e);
    }
    return rc || !need->plain ? rc : set(q, "dtype", "bfloat16", e);
}

static void show_loading(void *ctx, uint32_t percent)
{
    struct bench *b = ctx;
    if (percent < 100)
        bench_progress(b, "loading %u %%", percent);
    else
        bench_progress_end(b);
}

static FALLIBLE open_engine(struct offline *f, struct bench *b, const struct offline_need *need,
                            struct quire_options *q, struct q_err *e)
{
    struct quire_error error = {QUIRE_OK, ""};
    enum q_code rc;
    if ((rc = set_given(q, b, need, e)))
        return rc;
    if (!options_given(&b->o, "--max-num-seqs"))
        q->max_num_seqs = need->n_seq;
    if (!options_given(&b->o, "--max-model-len"))
        q->max_model_len = need->n_token;
    q->skip_tokenizer = !need->text;
    q->progress = b->progress ? show_loading : NULL;
    q->progress_ctx = b;
    memset(f, 0, sizeof *f);
    f->why = quire_engine_open(&f->engine, q, &error);
    bench_progress_end(b);
    if (f->why)
        return f->why == QUIRE_INVALID ? q_fail(e, Q_INVALID, "%s", error.message)
                                       : q_fail(e, Q_UNAVAILABLE, "%s", error.message);
    f->info.size = sizeof f->info;
    quire_engine_info(f->engine, &f->info);
    return Q_OK;
}

enum q_code offline_open(struct offline *f, struct bench *b, const struct offline_need *need,
                         struct q_err *e)
{
    struct quire_options q;
    quire_options_init(&q, sizeof q);
    q.model = need->model ? need->model : b->model;
    q.log_level = "warning";
    enum q_code rc = open_engine(f, b, need, &q, e);
    quire_options_release(&q);
    return rc;
}

void offline_close(struct offline *f)
{
    quire_engine_close(f->engine);
    f->engine = NULL;
}

/* measuring */

static int64_t first_us(const struct token_clock *c)
{
    return c->at_us[0];
}

static uint32_t tokens_of(const struct token_clock *c)
{
    uint32_t n = atomic_load(&c->n);
    return n < c->n_max ? n : c->n_max;
}

/* The time in which all sequences decode: from the last first token to the first last token. With
 * short outputs and long prompts it may be empty; then it ends at the very last token, which
 * underestimates the speed and never overestimates it. */
static void common_window(const struct token_clock *clocks, uint32_t n_seq, int64_t *begin,
                          int64_t *end)
{
    int64_t last = 0;
    *begin = 0;
    *end = INT64_MAX;
    for (uint32_t i = 0; i < n_seq; i++) {
        int64_t done = clocks[i].at_us[tokens_of(&clocks[i]) - 1];
        *begin = first_us(&clocks[i]) > *begin ? first_us(&clocks[i]) : *begin;
        *end = done < *end ? done : *end;
        last = done > last ? done : last;
    }
    if (*end <= *begin)
        *end = last;
}

static FALLIBLE measure_decode(struct batch_times *out, const struct token_clock *clocks,
                               const struct batch_shape *s, struct q_err *e)
{
    struct samples pauses = SAMPLES_INIT;
    int64_t begin, end;
    uint64_t n = 0;
    enum q_code rc = Q_OK;
    common_window(clocks, s->n_seq, &begin, &end);
    for (uint32_t i = 0; i < s->n_seq; i++)
        for (uint32_t k = 1; k < tokens_of(&clocks[i]) && !rc; k++) {
            int64_t at = clocks[i].at_us[k];
            if (at <= begin || at > end)
                continue;
            n++;
            rc = samples_add(&pauses, (double)(at - clocks[i].at_us[k - 1]) / 1000, e);
        }
    samples_sort(&pauses);
    out->itl_ms = samples_median(&pauses);
    out->decode_tok_s = n && end > begin ? (double)n * 1e6 / (double)(end - begin) : NAN;
    samples_release(&pauses);
    return rc;
}

double offline_gap_us(const struct quire_stats *before, const struct quire_stats *after)
{
    const uint64_t n = after->step_gaps - before->step_gaps;
    return n ? (double)(after->step_gap_us - before->step_gap_us) / (double)n : NAN;
}

enum q_code batch_measure(struct batch_times *out, const struct token_clock *clocks,
                          const struct batch_shape *s, struct q_err *e)
{
    struct samples ttft = SAMPLES_INIT;
    int64_t sent = INT64_MAX, last_first = 0;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < s->n_seq && !rc; i++) {
        sent = clocks[i].sent_us < sent ? clocks[i].sent_us : sent;
        last_first = first_us(&clocks[i]) > last_first ? first_us(&clocks[i]) : last_first;
        rc = samples_add(&ttft, (double)(first_us(&clocks[i]) - clocks[i].sent_us) / 1000, e);
    }
    samples_sort(&ttft);
    out->ttft_ms = samples_median(&ttft);
    int64_t took = last_first > sent ? last_first - sent : 1;
    out->prefill_tok_s = (double)s->n_seq * s->input_len * 1e6 / (double)took;
    samples_release(&ttft);
    return rc ? rc : measure_decode(out, clocks, s, e);
}

/* running */

struct batch {
    struct batch_shape largest;
    uint32_t *ids; /* [input_len] of the sequence being submitted */
    int64_t *at_us;
    struct token_clock *clocks;
    struct quire_request **requests;
};

enum q_code batch_new(struct batch **out, const struct batch_shape *largest, struct q_err *e)
{
    struct batch *b = q_calloc(1, sizeof *b);
    const uint32_t n = largest->n_seq;
    if (!b)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a batch");
    b->largest = *largest;
    b->ids = q_calloc(largest->input_len, sizeof *b->ids);
    b->at_us = q_calloc((size_t)n * largest->output_len, sizeof *b->at_us);
    b->clocks = q_calloc(n, sizeof *b->clocks);
    b->requests = q_calloc(n, sizeof(struct quire_request *));
    if (!b->ids || !b->at_us || !b->clocks || !b->requests) {
        batch_free(b);
        return q_fail(e, Q_NO_MEMORY, "out of memory for a batch of %u sequences", n);
    }
    *out = b;
    return Q_OK;
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    q_free(b->ids);
    q_free(b->at_us);
    q_free(b->clocks);
    q_free(b->requests);
    q_free(b);
}

/* On the engine's thread, after each event. */
static void tick(void *ctx)
{
    struct token_clock *c = ctx;
    uint32_t n = atomic_load_explicit(&c->n, memory_order_relaxed);
    if (n < c->n_max)
        c->at_us[n] = clock_us();
    atomic_store_explicit(&c->n, n + 1, memory_order_release);
}

static FALLIBLE submit_one(struct batch *b, struct offline *f, const struct batch_shape *s,
                           uint32_t i_seq, struct q_err *e)
{
    struct quire_params p;
    struct quire_error error;
    struct token_clock *c = &b->clocks[i_seq];
    quire_params_init(&p, sizeof p);
    p.ids = b->ids;
    p.n_ids = s->input_len;
    p.temperature = 0;
    p.max_tokens = s->output_len;
    p.ignore_eos = true;
    p.no_prefix_cache = true;
    p.notify = tick;
    p.notify_ctx = c;
    c->at_us = b->at_us + (size_t)i_seq * b->largest.output_len;
    c->n_max = s->output_len;
    atomic_store(&c->n, 0);
    c->sent_us = clock_us();
    if (quire_submit(&b->requests[i_seq], f->engine, &p, &error) != QUIRE_OK)
        return offline_fail(&error, "a prompt was rejected", e);
    return Q_OK;
}

static FALLIBLE take_all(struct quire_request *r, uint32_t n_token, struct q_err *e)
{
    struct quire_event event = {.kind = QUIRE_TOKEN};
    struct quire_error error;
    uint32_t n = 0;
    while (event.kind != QUIRE_FINISH) {
        if (quire_next(r, &event, -1, &error) != QUIRE_OK)
            return offline_fail(&error, "a sequence failed", e);
        n += event.kind == QUIRE_TOKEN;
    }
    if (n != n_token)
        return q_fail(e, Q_INTERNAL, "a sequence ended after %u tokens instead of %u", n, n_token);
    return Q_OK;
}

enum q_code batch_run(struct batch_times *out, struct batch *b, struct offline *f,
                      const struct batch_shape *s, uint64_t seed, struct q_err *e)
{
    enum q_code rc = Q_OK;
    uint32_t n = 0;
    struct quire_stats before = {.size = sizeof before}, after = before;
    Q_ASSERT(s->n_seq <= b->largest.n_seq && s->input_len <= b->largest.input_len &&
             s->output_len <= b->largest.output_len);
    quire_engine_stats(f->engine, &before);
    while (n < s->n_seq && !rc) {
        for (uint32_t k = 0; k < s->input_len; k++)
            b->ids[k] = (uint32_t)(bench_random(&seed) % f->info.vocab_size);
        if (!(rc = submit_one(b, f, s, n, e)))
            n++;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!rc)
            rc = take_all(b->requests[i], s->output_len, e);
        quire_request_free(b->requests[i]);
    }
    quire_engine_stats(f->engine, &after); /* the engine's thread has left the last tick by now */
    out->gap_us = offline_gap_us(&before, &after);
    return rc ? rc : batch_measure(out, b->clocks, s, e);
}
