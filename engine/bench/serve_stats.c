/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/serve_stats.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/parse.h"

const char *const serve_metric_names[METRIC_COUNT] = {"ttft", "tpot", "itl", "e2el"};

static FALLIBLE find_metric(enum serve_metric *out, const char *name, const char *flag,
                            struct q_err *e)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!strcmp(name, serve_metric_names[i])) {
            *out = (enum serve_metric)i;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "%s: \"%.30s\" is not one of ttft, tpot, itl, e2el", flag, name);
}

/* The next word between commas and spaces; false: none. */
static bool next_word(const char **at, char *out, size_t size)
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ", ");
    snprintf(out, size, "%.*s", (int)n, *at);
    *at += n;
    return n > 0;
}

enum q_code serve_limits_parse(struct serve_limits *l, const char *text, struct q_err *e)
{
    char word[64];
    for (const char *at = text; next_word(&at, word, sizeof word);) {
        char *colon = strchr(word, ':');
        enum serve_metric m;
        enum q_code rc;
        if (!colon)
            return q_fail(
                e, Q_INVALID,
                "--goodput: \"%.40s\" is invalid, expected NAME:MILLISECONDS such as ttft:500",
                word);
        *colon = '\0';
        if ((rc = find_metric(&m, word, "--goodput", e)) ||
            (rc = parse_f64(&l->ms[m], colon + 1, 0.001, 1e9, "--goodput", e)))
            return rc;
        if (m == METRIC_ITL)
            return q_fail(e, Q_INVALID, "--goodput: accepted names are ttft, tpot and e2el");
        l->any = true;
    }
    return Q_OK;
}

enum q_code serve_view_parse(struct serve_view *v, const char *metrics, const char *percents,
                             struct q_err *e)
{
    char word[64];
    enum q_code rc = Q_OK;
    memset(v, 0, sizeof *v);
    for (const char *at = metrics; !rc && next_word(&at, word, sizeof word);) {
        enum serve_metric m;
        if (!(rc = find_metric(&m, word, "--percentile-metrics", e)))
            v->metrics[m] = true;
    }
    for (const char *at = percents; !rc && next_word(&at, word, sizeof word);) {
        if (v->n_percent == BENCH_LIST_MAX)
            return q_fail(e, Q_INVALID, "--metric-percentiles: more than %d values",
                          BENCH_LIST_MAX);
        rc = parse_f64(&v->percents[v->n_percent++], word, 0, 100, "--metric-percentiles", e);
    }
    return rc;
}

static double ms_between(int64_t from, int64_t to)
{
    return (double)(to - from) / 1000;
}

static double tpot_of(const struct serve_record *r)
{
    return r->n_output > 1 ? ms_between(r->first_us, r->end_us) / (r->n_output - 1) : NAN;
}

static bool is_good(const struct serve_record *r, const struct serve_limits *l)
{
    const double ms[METRIC_COUNT] = {
        [METRIC_TTFT] = ms_between(r->sent_us, r->first_us),
        [METRIC_TPOT] = r->n_output > 1 ? tpot_of(r) : 0,
        [METRIC_E2EL] = ms_between(r->sent_us, r->end_us),
    };
    for (int i = 0; i < METRIC_COUNT; i++)
        if (l->ms[i] > 0 && ms[i] > l->ms[i])
            return false;
    return true;
}

static FALLIBLE add_record(struct serve_figures *f, const struct serve_record *r,
                           const struct serve_limits *l, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (!r->sent_us)
        return Q_OK; /* the run was interrupted before */
    if (!r->ok) {
        f->n_failed++;
        return Q_OK;
    }
    f->n_ok++;
    f->n_good += l->any && is_good(r, l);
    f->n_input += r->n_input;
    f->n_output += r->n_output;
    if (r->first_us)
        rc = samples_add(&f->times[METRIC_TTFT], ms_between(r->sent_us, r->first_us), e);
    if (!rc && r->first_us && r->n_output > 1)
        rc = samples_add(&f->times[METRIC_TPOT], tpot_of(r), e);
    if (!rc)
        rc = samples_add(&f->times[METRIC_E2EL], ms_between(r->sent_us, r->end_us), e);
    return rc;
}

struct edge { /* a request opens or closes */
    int64_t at_us;
    int change;
};

static int by_time(const void *p, const void *q)
{
    const struct edge *a = p, *b = q;
    if (a->at_us != b->at_us)
        return a->at_us < b->at_us ? -1 : 1;
    return a->change - b->change; /* closing first */
}

static FALLIBLE find_concurrency(struct serve_figures *f, const struct serve_record *records,
                                 size_t n, struct q_err *e)
{
    struct edge *edges = q_calloc(2 * n + 1, sizeof *edges);
    int64_t open = 0, most = 0;
    size_t n_edge = 0;
    if (!edges)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu requests", n);
    for (size_t i = 0; i < n; i++)
        if (records[i].sent_us && records[i].end_us) {
            edges[n_edge++] = (struct edge){records[i].sent_us, 1};
            edges[n_edge++] = (struct edge){records[i].end_us, -1};
        }
    qsort(edges, n_edge, sizeof *edges, by_time);
    for (size_t i = 0; i < n_edge; i++) {
        open += edges[i].change;
        most = open > most ? open : most;
    }
    f->concurrency_max = (uint32_t)most;
    q_free(edges);
    return Q_OK;
}

enum q_code serve_figure_out(struct serve_figures *f, const struct serve_record *records, size_t n,
                             struct samples *pauses, const struct serve_limits *limits,
                             struct q_err *e)
{
    struct samples late = SAMPLES_INIT;
    int64_t begin = INT64_MAX, end = 0;
    enum q_code rc = Q_OK;
    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct serve_record *r = &records[i];
        begin = r->sent_us && r->sent_us < begin ? r->sent_us : begin;
        end = r->end_us > end ? r->end_us : end;
        if (!(rc = add_record(f, r, limits, e)) && r->due_us)
            rc = samples_add(&late, ms_between(r->due_us, r->sent_us), e);
    }
    f->times[METRIC_ITL] = *pauses;
    *pauses = (struct samples)SAMPLES_INIT;
    for (int i = 0; i < METRIC_COUNT; i++)
        samples_sort(&f->times[i]);
    samples_sort(&late);
    f->late_ms = samples_percentile(&late, 99);
    samples_release(&late);
    f->duration_s = end > begin ? (double)(end - begin) * 1e-6 : NAN;
    f->rate_ok = (double)f->n_ok / f->duration_s;
    f->rate_good = limits->any ? (double)f->n_good / f->duration_s : NAN;
    f->output_tok_s = (double)f->n_output / f->duration_s;
    f->total_tok_s = (double)(f->n_input + f->n_output) / f->duration_s;
    return rc ? rc : find_concurrency(f, records, n, e);
}

void serve_figures_release(struct serve_figures *f)
{
    for (int i = 0; i < METRIC_COUNT; i++)
        samples_release(&f->times[i]);
}
