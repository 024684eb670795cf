/* SPDX-License-Identifier: Apache-2.0 */
/* trace - what an engine does when, step by step, as a file for Perfetto or chrome://tracing.
 *
 * The file is a JSON array of trace events (Chrome's format), one a line, in which the closing
 * bracket may be missing: whole lines are written every TRACE_FLUSH_MS, so that after a SIGKILL
 * nothing is lost but the last moment and every line is whole. Rows (tids): the engine's loop, the
 * worker, and what lies in the ring between them. An older file of that name becomes NAME.old.
 *
 * Adding a step is a copy into a queue; a thread formats and writes. The queue is bounded: when the
 * disk cannot keep up, steps are dropped and counted in the file.
 * Threads: trace_add from the loop that made it. */
#ifndef QUIRE_ENGINE_CORE_TRACE_H
#define QUIRE_ENGINE_CORE_TRACE_H
#include <stdint.h>
#include "common/err.h"

#define TRACE_QUEUE_MAX 16384 /* steps, of 160 bytes */
#define TRACE_FLUSH_MS  200

enum trace_part {
    TRACE_PLAN,    /* loop: who computes what */
    TRACE_ENCODE,  /* loop: the step's arrays into the ring */
    TRACE_SETTLE,  /* loop: the result into requests */
    TRACE_OUTBOX,  /* loop: outputs to their frontends */
    TRACE_WAIT,    /* ring: sent and not begun */
    TRACE_COPY,    /* worker: KV blocks of preempted requests, to host memory and back */
    TRACE_FORWARD, /* worker */
    TRACE_SAMPLE,  /* worker */
    TRACE_PARTS
};

struct trace_step {
    uint64_t step;
    uint32_t n_row, n_seq, n_admit; /* tokens, sequences, of them new to the worker */
    uint32_t n_out, n_in;           /* blocks copied to host memory, and back */
    struct {
        int64_t start_us, end_us; /* clock_us; end 0 = it did not come to that */
    } parts[TRACE_PARTS];
};

struct trace;
/* Errors: Q_IO (the file), Q_NO_MEMORY. */
FALLIBLE trace_new(struct trace **out, const char *path, struct q_err *e);
/* Write what is left and close the array. NULL is fine. */
void trace_free(struct trace *t);
void trace_add(struct trace *t, const struct trace_step *step);

#endif
