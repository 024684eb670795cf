/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench quality: a reference and the model as loaded with the given options score the same
 * tokens. One engine is open at a time, so that memory for both is not needed. A position counts if
 * its window has a token before it. Perplexity is exp of the mean of -log p(token); agreement is
 * the fraction of positions at which both models have the same most likely token. */
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/bench/offline.h"
#include "engine/bench/stats.h"
#include "engine/bench/trace.h"

#define WINDOW_DEFAULT  256
#define WINDOWS_DEFAULT 16
#define WINDOW_MIN      8
#define TEXT_MAX        ((size_t)256 << 20)

struct windows {   /* the tokens that are scored */
    uint32_t *ids; /* [n][length] */
    uint32_t *len; /* [n] tokens of each, at most length */
    size_t n;
    uint32_t length;
};

struct score { /* of a position */
    float logprob;
    uint32_t best; /* most likely token */
};

struct quality {
    struct bench *b;
    struct windows w;
    struct score *scores[2]; /* [n][length] reference, candidate */
    char names[2][160];
};

static FALLIBLE make_windows(struct quality *q, struct q_err *e)
{
    const struct options *o = &q->b->o;
    enum q_code rc = bench_one(&q->w.length, o->input_lens, WINDOW_DEFAULT, "--input-len", e);
    if (rc)
        return rc;
    if (q->w.length < WINDOW_MIN)
        return q_fail(e, Q_INVALID, "--input-len is %u, expected %d or more", q->w.length,
                      WINDOW_MIN);
    q->w.n = o->num_prompts ? (size_t)o->num_prompts : WINDOWS_DEFAULT;
    const size_t n = q->w.n * q->w.length;
    q->w.ids = q_calloc(n, sizeof *q->w.ids);
    q->w.len = q_calloc(q->w.n, sizeof *q->w.len);
    q->scores[0] = q_calloc(n, sizeof(struct score));
    q->scores[1] = q_calloc(n, sizeof(struct score));
    if (!q->w.ids || !q->w.len || !q->scores[0] || !q->scores[1])
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu tokens", n);
    return Q_OK;
}

/* Generate text with the reference, starting from one random token: likely text, without a
 * tokenizer. */
static FALLIBLE say_windows(struct quality *q, struct offline *f, struct q_err *e)
{
    uint64_t random = (uint64_t)q->b->o.bench_seed;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < q->w.n && !rc; i++) {
        uint32_t *ids = q->w.ids + i * q->w.length, n = 1;
        struct quire_params p;
        struct quire_request *r = NULL;
        struct quire_event event = {.kind = QUIRE_TOKEN};
        struct quire_error error;
        ids[0] = (uint32_t)(bench_random(&random) % f->info.vocab_size);
        quire_params_init(&p, sizeof p);
        p.ids = ids;
        p.n_ids = 1;
        p.temperature = 1;
        p.top_p = 1;
        p.top_k = 0;
        p.min_p = 0;
        p.repetition_penalty = 1;
        p.seed = (int64_t)(bench_random(&random) >> 1);
        p.max_tokens = q->w.length - 1;
        p.ignore_eos = true;
        bench_progress(q->b, "generating text: %zu of %zu", i, q->w.n);
        if (quire_submit(&r, f->engine, &p, &error))
            return offline_fail(&error, "a prompt was rejected", e);
        while (event.kind != QUIRE_FINISH && !rc) {
            if (quire_next(r, &event, -1, &error))
                rc = offline_fail(&error, "generating text", e);
            else if (event.kind == QUIRE_TOKEN && n < q->w.length)
                ids[n++] = event.token;
        }
        quire_request_free(r);
        q->w.len[i] = n;
    }
    return rc;
}

/* The beginning of a file, cut into windows. */
static FALLIBLE read_windows(struct quality *q, struct offline *f, struct q_err *e)
{
    struct buf text = BUF_INIT_MAX(TEXT_MAX);
    struct quire_tokens tokens = {NULL, 0};
    struct quire_error error;
    enum q_code rc = trace_read(&text, q->b->o.dataset_path, e);
    const struct quire_text in = {buf_str(&text), text.len};
    if (!rc && quire_tokenize(f->engine, &tokens, &in, false, &error))
        rc = offline_fail(&error, q->b->o.dataset_path, e);
    if (!rc && tokens.n < 2)
        rc = q_fail(e, Q_INVALID, "%.200s: the file contains no text", q->b->o.dataset_path);
    size_t n = (tokens.n + q->w.length - 1) / q->w.length;
    q->w.n = n < q->w.n ? n : q->w.n;
    for (size_t i = 0; i < q->w.n && !rc; i++) {
        size_t left = tokens.n - i * q->w.length;
        q->w.len[i] = left < q->w.length ? (uint32_t)left : q->w.length;
        memcpy(q->w.ids + i * q->w.length, tokens.ids + i * q->w.length,
               q->w.len[i] * sizeof *q->w.ids);
    }
    quire_free(tokens.ids);
    buf_release(&text);
    return rc;
}

static FALLIBLE score_window(struct quality *q, struct offline *f, size_t i, struct score *scores,
                             struct q_err *e)
{
    struct quire_params p;
    struct quire_request *r = NULL;
    struct quire_event event = {.kind = QUIRE_PROMPT};
    struct quire_error error;
    enum q_code rc = Q_OK;
    if (q->w.len[i] < 2)
        return Q_OK;
    quire_params_init(&p, sizeof p);
    p.ids = q->w.ids + i * q->w.length;
    p.n_ids = q->w.len[i];
    p.temperature = 0;
    p.max_tokens = 1;
    p.prompt_logprobs = 1;
    p.no_prefix_cache = true;
    if (quire_submit(&r, f->engine, &p, &error))
        return offline_fail(&error, "a text was rejected", e);
    while (event.kind != QUIRE_FINISH && !rc) {
        if (quire_next(r, &event, -1, &error))
            rc = offline_fail(&error, "scoring", e);
        else if (event.kind == QUIRE_PROMPT && event.rank && event.n_top &&
                 event.position < q->w.len[i])
            scores[i * q->w.length + event.position] =
                (struct score){event.logprob, event.top[0].token};
    }
    quire_request_free(r);
    return rc;
}

/* Append the options that make the candidate differ from the reference. */
static void add_name(char *name, size_t size, const struct options *o)
{
    size_t n = strlen(name);
    if (*o->quantization)
        n += (size_t)snprintf(name + n, size - n, ", %.20s", o->quantization);
    if (strcmp(o->kv_cache_dtype, "auto") != 0)
        snprintf(name + n, size - n, ", KV %.20s", o->kv_cache_dtype);
}

/* Open a model, score every window, close it. which: 0 the reference, which also gives the text. */
static FALLIBLE score_all(struct quality *q, int which, struct q_err *e)
{
    const struct options *o = &q->b->o;
    struct offline f = {0};
    const bool other = *o->reference != '\0';
    const struct offline_need need = {
        .n_seq = 4,
        .n_token = q->w.length + 1,
        .text = which == 0 && *o->dataset_path,
        .model = which == 0 && other ? o->reference : NULL,
        .plain = which == 0,
    };
    enum q_code rc = offline_open(&f, q->b, &need, e);
    if (!rc && which == 0)
        rc = *o->dataset_path ? read_windows(q, &f, e) : say_windows(q, &f, e);
    for (size_t i = 0; i < q->w.n && !rc; i++) {
        bench_progress(q->b, "%s: text %zu of %zu", which ? "model" : "reference", i + 1, q->w.n);
        rc = score_window(q, &f, i, q->scores[which], e);
    }
    snprintf(q->names[which], sizeof q->names[which], "%.80s, %s",
             need.model ? need.model : q->b->model, f.info.dtype);
    if (which)
        add_name(q->names[which], sizeof q->names[which], o);
    bench_progress_end(q->b);
    offline_close(&f);
    return rc;
}

struct sums {
    double nll[2];         /* of all positions */
    struct samples change; /* |logprob - reference's| */
    uint64_t n, n_same;
};

static FALLIBLE add_up(struct sums *s, const struct quality *q, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < q->w.n; i++)
        for (uint32_t k = 1; k < q->w.len[i] && !rc; k++) {
            const struct score *a = &q->scores[0][i * q->w.length + k];
            const struct score *b = &q->scores[1][i * q->w.length + k];
            s->nll[0] -= a->logprob;
            s->nll[1] -= b->logprob;
            s->n_same += a->best == b->best;
            s->n++;
            rc = samples_add(&s->change, fabs((double)a->logprob - b->logprob), e);
        }
    samples_sort(&s->change);
    return rc;
}

static void show(struct quality *q, const struct sums *s)
{
    struct bench *b = q->b;
    double n = (double)s->n, before = exp(s->nll[0] / n), after = exp(s->nll[1] / n);
    double same = (double)s->n_same / n;
    fprintf(b->out, "%llu positions of %s\n", (unsigned long long)s->n,
            *b->o.dataset_path ? b->o.dataset_path : "text generated by the reference");
    fprintf(b->out, "  %-40s perplexity %.4f\n", q->names[0], before);
    fprintf(b->out, "  %-40s perplexity %.4f (%+.2f %%)\n", q->names[1], after,
            100 * (after / before - 1));
    fprintf(b->out,
            "  top-1 agreement %.2f %%; change of log p: mean %.4f, median %.4f, p99 %.4f\n",
            100 * same, samples_mean(&s->change), samples_median(&s->change),
            samples_percentile(&s->change, 99));
    bench_run_text(b, "version", QUIRE_VERSION);
    bench_run_text(b, "model", b->model);
    bench_run_text(b, "quantization", b->o.quantization);
    bench_row_begin(b);
    bench_row_text(b, "reference", q->names[0]);
    bench_row_text(b, "candidate", q->names[1]);
    bench_row_count(b, "positions", s->n);
    bench_row_number(b, "perplexity_reference", before);
    bench_row_number(b, "perplexity", after);
    bench_row_number(b, "top1_agreement", same);
    bench_row_number(b, "mean_logprob_change", samples_mean(&s->change));
    bench_row_number(b, "p99_logprob_change", samples_percentile(&s->change, 99));
    bench_row_end(b);
}

enum q_code bench_quality(struct bench *b, struct q_err *e)
{
    struct quality q = {.b = b};
    struct sums s = {.change = SAMPLES_INIT};
    enum q_code rc;
    if (!(rc = make_windows(&q, e)) && !(rc = score_all(&q, 0, e)) && !(rc = score_all(&q, 1, e)) &&
        !(rc = add_up(&s, &q, e)))
        show(&q, &s);
    samples_release(&s.change);
    q_free(q.w.ids);
    q_free(q.w.len);
    q_free(q.scores[0]);
    q_free(q.scores[1]);
    return rc;
}
