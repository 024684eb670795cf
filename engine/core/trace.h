/* SPDX-License-Identifier: Apache-2.0 */
/* trace - a timeline of an engine's steps, as a file for Perfetto or chrome://tracing.
 *
 * The file is a JSON array of trace events (Chrome's format), one per line; the closing bracket may
 * be missing: complete lines are written every TRACE_FLUSH_MS, so that a SIGKILL loses only the
 * last interval. Rows (tids): the engine's loop, the worker, and steps waiting in the ring. An
 * older file of that name becomes NAME.old.
 *
 * Adding a step copies it into a queue; a thread formats and writes. The queue is bounded: if the
 * disk is too slow, steps are dropped and counted in the file.
 * Threads: trace_add from the loop that made it. */
#ifndef QUIRE_ENGINE_CORE_TRACE_H
#define QUIRE_ENGINE_CORE_TRACE_H
#include <stdint.h>
#include "common/err.h"

#define TRACE_QUEUE_MAX 16384 /* steps, of 160 bytes */
#define TRACE_FLUSH_MS  200

enum trace_part {
    TRACE_PLAN,    /* loop: planning */
    TRACE_ENCODE,  /* loop: the step's arrays into the ring */
    TRACE_SETTLE,  /* loop: the result into requests */
    TRACE_OUTBOX,  /* loop: outputs to their frontends */
    TRACE_WAIT,    /* ring: sent and not started */
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
        int64_t start_us, end_us; /* clock_us; end 0 = not reached */
    } parts[TRACE_PARTS];
};

struct trace;
/* Errors: Q_IO (the file), Q_NO_MEMORY. */
FALLIBLE trace_new(struct trace **out, const char *path, struct q_err *e);
/* Write the remaining events and close the array. NULL is fine. */
void trace_free(struct trace *t);
void trace_add(struct trace *t, const struct trace_step *step);

#endif
