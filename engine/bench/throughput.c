/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench throughput: submits all requests of a workload as fast as possible. When the engine's
 * queue is full, it waits for the oldest request. */
#include <math.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/bench/cost.h"
#include "engine/bench/dataset.h"
#include "engine/bench/offline.h"

#define SEQS_DEFAULT 256u

struct throughput {
    struct bench *b;
    struct workload work;
    struct offline engine;
    struct quire_request **requests; /* [work.n]; NULL = not there (any more) */
    uint32_t *ids;                   /* [longest prompt] */
    size_t n_sent, n_done;
    uint64_t n_prompt, n_output; /* tokens */
    int64_t start_us;
};

static uint32_t longest(const struct workload *w, bool with_output)
{
    uint32_t most = 1;
    for (size_t i = 0; i < w->n; i++) {
        uint32_t n = workload_input_len(w, i) + (with_output ? w->items[i].output_len : 0);
        most = n > most ? n : most;
    }
    return most;
}

static FALLIBLE prepare(struct throughput *t, struct q_err *e)
{
    struct workload *w = &t->work;
    enum q_code rc = dataset_open(w, &t->b->o, e);
    if (rc)
        return rc;
    bool text = w->items[0].text != NULL;
    const struct offline_need need = {
        .n_seq = w->n < SEQS_DEFAULT ? (uint32_t)w->n : SEQS_DEFAULT,
        .n_token = text ? 0 : longest(w, true),
        .text = text,
    };
    t->requests = q_calloc(w->n, sizeof(struct quire_request *));
    t->ids = q_calloc(longest(w, false), sizeof *t->ids);
    if (!t->requests || !t->ids)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu requests", w->n);
    if ((rc = bench_ceilings(t->b, true, e)))
        return rc;
    return offline_open(&t->engine, t->b, &need, e);
}

static void tell(struct throughput *t)
{
    double seconds = (double)(clock_us() - t->start_us) * 1e-6;
    bench_progress(t->b, "%zu of %zu requests, %.0f tokens/s", t->n_done, t->work.n,
                   seconds > 0 ? (double)t->n_output / seconds : 0);
}

/* Wait for the oldest request and forget it. */
static FALLIBLE take_oldest(struct throughput *t, struct q_err *e)
{
    struct quire_event event = {.kind = QUIRE_TOKEN};
    struct quire_error error;
    struct quire_request *r = t->requests[t->n_done];
    enum q_code rc = Q_OK;
    while (event.kind != QUIRE_FINISH && !rc) {
        if (quire_next(r, &event, -1, &error) != QUIRE_OK)
            rc = offline_fail(&error, "a request failed", e);
        t->n_output += !rc && event.kind == QUIRE_TOKEN;
        tell(t);
    }
    t->n_prompt += quire_request_n_prompt(r);
    quire_request_free(r);
    t->requests[t->n_done++] = NULL;
    return rc;
}

static FALLIBLE send_next(struct throughput *t, struct q_err *e)
{
    const size_t i = t->n_sent;
    const struct work *item = &t->work.items[i];
    struct quire_params p;
    struct quire_error error;
    enum quire_code code;
    quire_params_init(&p, sizeof p);
    p.text = item->text;
    if (!item->text) {
        workload_ids(&t->work, i, t->engine.info.vocab_size, t->ids);
        p.ids = t->ids;
        p.n_ids = workload_input_len(&t->work, i);
    }
    p.temperature = 0;
    p.max_tokens = item->output_len;
    p.ignore_eos = t->b->o.bench_ignore_eos;
    while ((code = quire_submit(&t->requests[i], t->engine.engine, &p, &error)) == QUIRE_BUSY &&
           t->n_done < t->n_sent) {
        enum q_code rc = take_oldest(t, e);
        if (rc)
            return rc;
    }
    if (code)
        return offline_fail(&error, "a request was rejected", e);
    t->n_sent++;
    return Q_OK;
}

/* All operations of the run as a fraction of the machine's peak over the same time. */
static double fraction(const struct throughput *t, double seconds)
{
    const struct quire_info *info = &t->engine.info;
    double ops = 0;
    for (size_t i = 0; i < t->work.n; i++)
        ops += cost_ops(info, workload_input_len(&t->work, i), (double)t->work.items[i].output_len);
    return ops / seconds / cost_peak(t->b, info);
}

static void print_results(struct throughput *t)
{
    struct bench *b = t->b;
    struct quire_stats stats = {.size = sizeof stats}, none = stats;
    double s = (double)(clock_us() - t->start_us) * 1e-6;
    double part = t->work.items[0].text ? NAN : fraction(t, s);
    quire_engine_stats(t->engine.engine, &stats);
    const double gap_us = offline_gap_us(&none, &stats);
    bench_progress_end(b);
    fprintf(b->out, "%zu requests in %.2f s: %.2f requests/s, %.1f output tokens/s, %.1f tokens/s",
            t->n_done, s, (double)t->n_done / s, (double)t->n_output / s,
            (double)(t->n_prompt + t->n_output) / s);
    if (isfinite(part))
        fprintf(b->out, ", %.2f of peak arithmetic", part);
    fprintf(b->out, "\n%llu tokens in, %llu out, %llu steps, %llu preemptions, peak rss %.0f MB",
            (unsigned long long)t->n_prompt, (unsigned long long)t->n_output,
            (unsigned long long)stats.steps, (unsigned long long)stats.preemptions,
            bench_peak_rss_mb());
    if (isfinite(gap_us))
        fprintf(b->out, ", %.0f us idle between two steps", gap_us);
    fputs("\n", b->out);
    bench_row_begin(b);
    bench_row_number(b, "elapsed_time", s);
    bench_row_count(b, "num_requests", t->n_done);
    bench_row_count(b, "total_input_tokens", t->n_prompt);
    bench_row_count(b, "total_output_tokens", t->n_output);
    bench_row_count(b, "total_num_tokens", t->n_prompt + t->n_output);
    bench_row_number(b, "requests_per_second", (double)t->n_done / s);
    bench_row_number(b, "output_tokens_per_second", (double)t->n_output / s);
    bench_row_number(b, "tokens_per_second", (double)(t->n_prompt + t->n_output) / s);
    bench_row_count(b, "steps", stats.steps);
    bench_row_number(b, "step_gap_us", gap_us);
    bench_row_count(b, "preemptions", stats.preemptions);
    bench_row_number(b, "peak_rss_mb", bench_peak_rss_mb());
    bench_row_number(b, "fraction_of_peak", part);
    bench_row_end(b);
}

enum q_code bench_throughput(struct bench *b, struct q_err *e)
{
    struct throughput t = {.b = b, .work = WORKLOAD_INIT};
    enum q_code rc = prepare(&t, e);
    if (!rc) {
        cost_print_header(b, &t.engine.info);
        t.start_us = clock_us();
        while (t.n_sent < t.work.n && !rc)
            rc = send_next(&t, e);
        while (t.n_done < t.n_sent && !rc)
            rc = take_oldest(&t, e);
        if (!rc)
            print_results(&t);
    }
    for (size_t i = t.n_done; i < t.n_sent; i++)
        quire_request_free(t.requests[i]);
    offline_close(&t.engine);
    workload_release(&t.work);
    q_free(t.requests);
    q_free(t.ids);
    return rc;
}
