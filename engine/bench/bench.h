/* SPDX-License-Identifier: Apache-2.0 */
/* bench - shared parts of the `quire bench` verbs: options, machine, progress, results.
 *
 * A verb is a function from one struct bench to a table on standard output and, with --json, one
 * object {"machine": {…}, "run": {…}, "results": [{…}]}. It adds a member to `results` for each row
 * it prints. Progress goes to standard error. Threads: main. */
#ifndef QUIRE_ENGINE_BENCH_BENCH_H
#define QUIRE_ENGINE_BENCH_BENCH_H
#include "common/buf.h"
#include "common/options.h"
#include "kernels/bench/machine.h"

#define BENCH_LIST_MAX 64

struct bench {
    struct options o;
    const char *model; /* MODEL or --model; "" = none */
    struct machine machine;
    struct roofline roofline;
    bool has_roofline;
    FILE *out;          /* tables: standard output, or standard error time of that line that is
                         * for JSON */
    bool progress;      /* progress is shown */
    bool said;          /* a progress line is on the terminal now */
    int64_t said_ms;    /* when */
    struct buf run;     /* members of "run", each followed by a comma but the last */
    struct buf results; /* members of "results", separated by commas */
    uint32_t n_result;
};

/* A verb. Errors: Q_INVALID (the command line, exit 2), any other (exit 1, or 3 as the code of
 * loading a model, see bench_model_failed). */
typedef enum q_code bench_verb(struct bench *b, struct q_err *e);
bench_verb bench_latency, bench_throughput, bench_serve, bench_quality, bench_roofline;

/* Show the progress, a few times a second; nothing when progress is off. */
__attribute__((format(printf, 2, 3))) void bench_progress(struct bench *b, const char *fmt, ...);
void bench_progress_end(struct bench *b);

/* Measure the ceilings in a process of its own, so that its memory does not count as ours and its
 * threads do not pin ours. Does nothing when --no-roofline was given. Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE bench_ceilings(struct bench *b, bool quick, struct q_err *e);

/* Results: begin a row, add members, end it. A value that is not a number becomes null. */
void bench_row_begin(struct bench *b);
void bench_row_number(struct bench *b, const char *key, double value);
void bench_row_count(struct bench *b, const char *key, uint64_t value);
void bench_row_text(struct bench *b, const char *key, const char *value);
void bench_row_end(struct bench *b);
/* Members of "run". */
void bench_run_number(struct bench *b, const char *key, double value);
void bench_run_text(struct bench *b, const char *key, const char *value);
/* Write the file of --json, when given. Errors: Q_IO. */
FALLIBLE bench_save(struct bench *b, struct q_err *e);

/* "1,8,32" -> [*n] numbers of 1 … max. Errors: Q_INVALID, naming the flag. */
struct bench_list {
    uint32_t x[BENCH_LIST_MAX];
    uint32_t n;
};
FALLIBLE bench_list_parse(struct bench_list *out, const char *text, uint32_t max, const char *flag,
                          struct q_err *e);
/* One number, or `otherwise` for "". Errors: Q_INVALID. */
FALLIBLE bench_one(uint32_t *out, const char *text, uint32_t otherwise, const char *flag,
                   struct q_err *e);

uint64_t bench_random(uint64_t *state); /* splitmix64 */
double bench_uniform(uint64_t *state);  /* in [0, 1) */
double bench_peak_rss_mb(void);         /* of this process so far, MiB; NaN when not known */

#endif
