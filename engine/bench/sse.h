/* SPDX-License-Identifier: Apache-2.0 */
/* sse - parses the streamed answer of an OpenAI server, piece by piece.
 *
 * Bytes go in as they come from the network, in any pieces; each event's JSON becomes a struct
 * sse_piece. Comments (": ping") and fields other than data are skipped. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_SSE_H
#define QUIRE_ENGINE_BENCH_SSE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

#define SSE_LINE_MAX ((size_t)8 << 20) /* bytes of one event */

struct sse_piece {
    bool has_token;  /* text, reasoning, a part of a tool call, or token ids */
    bool has_finish; /* a finish_reason */
    bool has_usage;
    uint32_t n_input, n_output; /* of usage */
};
typedef enum q_code sse_on_piece(void *ctx, const struct sse_piece *p, struct q_err *e);

struct sse {
    struct buf line;
    bool done; /* [DONE] was received */
    sse_on_piece *on_piece;
    void *ctx;
};
void sse_init(struct sse *s, sse_on_piece *on_piece, void *ctx);
void sse_release(struct sse *s);
/* Errors: Q_CORRUPT (not JSON, or an object "error"; the message is its own), Q_TOO_LARGE, those of
 * on_piece. */
FALLIBLE sse_push(struct sse *s, const char *data, size_t n, struct q_err *e);
/* The message in the body of an error: its "error"'s "message", else its beginning; one line. */
void sse_error_text(char *out, size_t size, const char *body, size_t n);

#endif
