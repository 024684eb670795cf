/* SPDX-License-Identifier: Apache-2.0 */
/* serve_stats - statistics of a server from the times of its requests. The terms are vLLM's:
 *
 *     TTFT  from sending a request to its first piece with text
 *     ITL   between two such pieces
 *     TPOT  (end - first piece) / (output tokens - 1) of a request with two tokens or more
 *     E2EL  from sending to the last byte
 *
 * Failed requests count in none of these. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_SERVE_STATS_H
#define QUIRE_ENGINE_BENCH_SERVE_STATS_H
#include <stdint.h>
#include "engine/bench/bench.h"
#include "engine/bench/stats.h"

enum serve_metric { METRIC_TTFT, METRIC_TPOT, METRIC_ITL, METRIC_E2EL, METRIC_COUNT };
extern const char *const serve_metric_names[METRIC_COUNT]; /* "ttft" … */

struct serve_record { /* one request */
    bool ok;
    int64_t due_us, sent_us, first_us, last_us, end_us; /* first, last: pieces; 0 = none */
    uint32_t n_input, n_output;                         /* tokens, as the server counts them */
    uint32_t n_piece;                                   /* with text */
    char error[160];
};

struct serve_limits { /* of a good request, ms; 0 = none */
    double ms[METRIC_COUNT];
    bool any;
};
/* "ttft:500,tpot:50", spaces too. Errors: Q_INVALID. */
FALLIBLE serve_limits_parse(struct serve_limits *l, const char *text, struct q_err *e);

struct serve_view { /* the metrics to print */
    bool metrics[METRIC_COUNT];
    double percents[BENCH_LIST_MAX];
    uint32_t n_percent;
};
/* Errors: Q_INVALID. */
FALLIBLE serve_view_parse(struct serve_view *v, const char *metrics, const char *percents,
                          struct q_err *e);

struct serve_figures {
    uint64_t n_ok, n_failed, n_good, n_input, n_output;
    double duration_s;
    double rate_ok, rate_good, output_tok_s, total_tok_s;
    uint32_t concurrency_max; /* requests open at once, at most */
    double late_ms; /* of sends, 99th percentile: above a few ms the client was too slow */
    struct samples times[METRIC_COUNT]; /* ms, sorted */
};
/* records: [n]; pauses: all ITL in ms, moved into the figures. Errors: Q_NO_MEMORY. */
FALLIBLE serve_figure_out(struct serve_figures *f, const struct serve_record *records, size_t n,
                          struct samples *pauses, const struct serve_limits *limits,
                          struct q_err *e);
void serve_figures_release(struct serve_figures *f);

struct serve_shown { /* all borrowed */
    const struct serve_figures *figures;
    const struct serve_view *view;
    const struct serve_record *records; /* [n] */
    size_t n;
    double rate;      /* INFINITY: all at once; NAN: times of a trace */
    const char *what; /* the rate as text */
};
/* serve_show.c: the table, and a row of the results. */
void serve_show(struct bench *b, const struct serve_shown *s);

#endif
