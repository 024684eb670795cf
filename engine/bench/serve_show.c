/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `quire bench serve` for a run; the keys of its JSON are vLLM's. */
#include <math.h>
#include <string.h>
#include "engine/bench/serve_stats.h"

#define ERRORS_SHOWN 5
#define LATE_MS      10 /* sends later than this are the client's fault */

static void print_line(const struct bench *b, const char *name, double value, int digits)
{
    if (isfinite(value))
        fprintf(b->out, "  %-28s %12.*f\n", name, digits, value);
}

static void print_counts(const struct bench *b, const struct serve_figures *f)
{
    print_line(b, "successful requests", (double)f->n_ok, 0);
    if (f->n_failed)
        print_line(b, "failed requests", (double)f->n_failed, 0);
    print_line(b, "duration (s)", f->duration_s, 2);
    print_line(b, "input tokens", (double)f->n_input, 0);
    print_line(b, "output tokens", (double)f->n_output, 0);
    print_line(b, "requests/s", f->rate_ok, 2);
    print_line(b, "good requests/s", f->rate_good, 2);
    print_line(b, "output tokens/s", f->output_tok_s, 1);
    print_line(b, "tokens/s", f->total_tok_s, 1);
    print_line(b, "peak concurrent requests", f->concurrency_max, 0);
}

static void print_times(const struct bench *b, const struct serve_shown *s)
{
    const struct serve_view *v = s->view;
    fprintf(b->out, "  %-8s %10s", "ms", "mean");
    for (uint32_t i = 0; i < v->n_percent; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%g", v->percents[i]);
        fprintf(b->out, " %10s", name);
    }
    fputc('\n', b->out);
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct samples *t = &s->figures->times[m];
        if (!v->metrics[m] || !t->n)
            continue;
        fprintf(b->out, "  %-8s %10.2f", serve_metric_names[m], samples_mean(t));
        for (uint32_t i = 0; i < v->n_percent; i++)
            fprintf(b->out, " %10.2f", samples_percentile(t, v->percents[i]));
        fputc('\n', b->out);
    }
}

/* The first few; most runs that fail, fail the same way. */
static void print_errors(const struct serve_shown *s)
{
    const char *said[ERRORS_SHOWN] = {NULL};
    uint32_t n = 0;
    for (size_t i = 0; i < s->n && n < ERRORS_SHOWN; i++) {
        const char *error = s->records[i].error;
        bool known = !*error;
        for (uint32_t k = 0; k < n; k++)
            known |= !strcmp(said[k], error);
        if (known)
            continue;
        said[n++] = error;
        fprintf(stderr, "request %zu: %s\n", i, error);
    }
}

static void add_times(struct bench *b, const struct serve_shown *s)
{
    char key[64];
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct samples *t = &s->figures->times[m];
        const char *name = serve_metric_names[m];
        if (!s->view->metrics[m])
            continue;
        snprintf(key, sizeof key, "mean_%s_ms", name);
        bench_row_number(b, key, samples_mean(t));
        snprintf(key, sizeof key, "median_%s_ms", name);
        bench_row_number(b, key, samples_median(t));
        snprintf(key, sizeof key, "std_%s_ms", name);
        bench_row_number(b, key, samples_std(t));
        for (uint32_t i = 0; i < s->view->n_percent; i++) {
            snprintf(key, sizeof key, "p%g_%s_ms", s->view->percents[i], name);
            bench_row_number(b, key, samples_percentile(t, s->view->percents[i]));
        }
    }
}

static double seconds(int64_t from, int64_t to)
{
    return from && to ? (double)(to - from) * 1e-6 : NAN;
}

/* Columns, one entry a request that was sent. */
static void add_details(struct bench *b, const struct serve_shown *s)
{
    static const char *const names[] = {"input_lens", "output_lens", "ttfts",
                                        "e2els",      "starts",      "errors"};
    const int64_t begin = s->n ? s->records[0].sent_us : 0;
    for (int c = 0; c < 6; c++) {
        const char *comma = "";
        buf_printf(&b->results, ",\"%s\":[", names[c]);
        for (size_t i = 0; i < s->n; i++) {
            const struct serve_record *r = &s->records[i];
            if (!r->sent_us)
                continue;
            const double x[] = {r->n_input, r->n_output, seconds(r->sent_us, r->first_us),
                                seconds(r->sent_us, r->end_us), seconds(begin, r->sent_us)};
            buf_add_str(&b->results, comma);
            comma = ",";
            if (c == 5)
                buf_add_json_str(&b->results, r->error, strlen(r->error));
            else if (isfinite(x[c]))
                buf_printf(&b->results, "%.9g", x[c]);
            else
                buf_add_str(&b->results, "null");
        }
        buf_add_char(&b->results, ']');
    }
}

static void add_row(struct bench *b, const struct serve_shown *s)
{
    const struct serve_figures *f = s->figures;
    bench_row_begin(b);
    if (isinf(s->rate))
        bench_row_text(b, "request_rate", "inf");
    else
        bench_row_number(b, "request_rate", s->rate);
    bench_row_number(b, "burstiness", b->o.burstiness);
    if (b->o.max_concurrency)
        bench_row_count(b, "max_concurrency", (uint64_t)b->o.max_concurrency);
    bench_row_count(b, "num_prompts", s->n);
    bench_row_count(b, "completed", f->n_ok);
    bench_row_count(b, "failed", f->n_failed);
    bench_row_number(b, "duration", f->duration_s);
    bench_row_count(b, "total_input_tokens", f->n_input);
    bench_row_count(b, "total_output_tokens", f->n_output);
    bench_row_number(b, "request_throughput", f->rate_ok);
    bench_row_number(b, "request_goodput", f->rate_good);
    bench_row_number(b, "output_throughput", f->output_tok_s);
    bench_row_number(b, "total_token_throughput", f->total_tok_s);
    bench_row_count(b, "max_concurrent_requests", f->concurrency_max);
    bench_row_number(b, "p99_send_delay_ms", f->late_ms);
    add_times(b, s);
    if (b->o.save_detailed)
        add_details(b, s);
    bench_row_end(b);
}

void serve_show(struct bench *b, const struct serve_shown *s)
{
    fprintf(b->out, "%s\n", s->what);
    print_counts(b, s->figures);
    if (s->figures->n_ok)
        print_times(b, s);
    if (s->figures->late_ms > LATE_MS)
        fprintf(b->out,
                "  warning: the client was overloaded; 1 %% of the requests were sent more than "
                "%.0f ms late\n",
                s->figures->late_ms);
    fflush(b->out);
    print_errors(s);
    add_row(b, s);
}
