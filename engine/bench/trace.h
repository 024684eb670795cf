/* SPDX-License-Identifier: Apache-2.0 */
/* trace - recorded workloads of real services: arrival times, prompt and answer lengths.
 *
 *     Azure     CSV   TIMESTAMP,ContextTokens,GeneratedTokens
 *                     2023-11-16 18:17:03.9799600,4808,10
 *     BurstGPT  CSV   Timestamp,…,Request tokens,Response tokens,… seconds, whole or not
 *     Mooncake  JSONL {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": […]}
 *                     and what --record-requests of a server adds: "request": {"n": 2, …},
 *                     parameters to send with the request
 *
 * The first line determines the format, the first bytes the compression. Requests are sorted
 * by time, counted from the first. Threads: reentrant. */
#ifndef QUIRE_ENGINE_BENCH_TRACE_H
#define QUIRE_ENGINE_BENCH_TRACE_H
#include "engine/bench/workload.h"

/* A whole file, decompressed when it is zstd. Errors: Q_NOT_FOUND, Q_IO, Q_CORRUPT (zstd),
 * Q_TOO_LARGE (out->max). */
FALLIBLE trace_read(struct buf *out, const char *path, struct q_err *e);
/* Errors: Q_CORRUPT: unknown format; line, column, the value found and the one expected. */
FALLIBLE trace_parse(struct workload *w, const char *data, size_t n, struct q_err *e);

#endif
