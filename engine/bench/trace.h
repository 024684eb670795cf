/* SPDX-License-Identifier: Apache-2.0 */
/* trace - recordings of what real services were asked: when, how long prompts and answers were.
 *
 *     Azure     CSV   TIMESTAMP,ContextTokens,GeneratedTokens
 *                     2023-11-16 18:17:03.9799600,4808,10
 *     BurstGPT  CSV   Timestamp,…,Request tokens,Response tokens,… seconds, whole or not
 *     Mooncake  JSONL {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": […]}
 *
 * The format is told by the first line, compression by the first bytes. Requests are put in the
 * order of their times, which count from the first. Threads: reentrant. */
#ifndef QUIRE_ENGINE_BENCH_TRACE_H
#define QUIRE_ENGINE_BENCH_TRACE_H
#include "engine/bench/workload.h"

/* A whole file, unpacked when zstd packed it. Errors: Q_NOT_FOUND, Q_IO, Q_CORRUPT (zstd),
 * Q_TOO_LARGE (out->max). */
FALLIBLE trace_read(struct buf *out, const char *path, struct q_err *e);
/* Errors: Q_CORRUPT: no known format; line, column, what is there, what is expected. */
FALLIBLE trace_parse(struct workload *w, const char *data, size_t n, struct q_err *e);

#endif
