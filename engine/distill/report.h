/* SPDX-License-Identifier: Apache-2.0 */
/* report - what a person and programs see of a run: text on standard error, a line in place on a
 * terminal, JSON lines, the file of --metrics, Prometheus text on a port, TensorBoard files.
 * Made by rank 0 alone. Threads: one owner; a thread of its own answers the port. */
#ifndef QUIRE_ENGINE_DISTILL_REPORT_H
#define QUIRE_ENGINE_DISTILL_REPORT_H
#include "common/err.h"
#include "engine/distill/report_values.h"

struct report_options {
    const char *metrics_path, *tensorboard_dir; /* NULL: none */
    uint32_t metrics_port;                      /* 0: none */
    bool json, quiet;
    uint64_t first_step; /* done before: lines of later steps are removed from metrics_path */
    uint64_t n_step;
    uint32_t n_rank;
};

struct report;
/* Errors: Q_IO (a file that cannot be written, a port that is taken), Q_NO_MEMORY, Q_CORRUPT (the
 * metrics file is none of a run). */
FALLIBLE report_new(struct report **out, const struct report_options *o, struct q_err *e);
void report_free(struct report *r);
/* For --json; the log has it already. */
void report_data(struct report *r, const char *what, const struct dataset_counts *c);
void report_cut(struct report *r, const struct report_cut *c);
/* Errors: Q_IO (disk full), Q_NO_MEMORY. */
FALLIBLE report_step(struct report *r, const struct report_step *s, struct q_err *e);
FALLIBLE report_eval(struct report *r, const struct report_eval *v, struct q_err *e);
/* A sentence: a checkpoint, the end. */
__attribute__((format(printf, 2, 3))) void report_say(struct report *r, const char *fmt, ...);

#endif
