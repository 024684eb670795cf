/* SPDX-License-Identifier: Apache-2.0 */
/* chat_stream - one request to /v1/chat/completions and its streamed answer.
 * Threads: one owner; `stop` may be set by a signal handler. */
#ifndef QUIRE_FRONTEND_CLI_CHAT_STREAM_H
#define QUIRE_FRONTEND_CLI_CHAT_STREAM_H
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include "common/buf.h"
#include "frontend/cli/http_client.h"

struct chat_peer {
    struct http_url url;
    const char *key;                   /* NULL = none */
    const volatile sig_atomic_t *stop; /* not 0: cancel the answer */
};
struct chat_answer { /* so far */
    struct buf content;
    json_t *calls; /* array of {"id", "type", "function": {"name", "arguments"}} */
    uint64_t n_prompt, n_token;
    int64_t asked_us, first_us, last_us;
    void (*on_text)(void *ctx, const char *text, size_t n, bool reasoning);
    void *ctx;
};
void chat_answer_release(struct chat_answer *a);
/* body: the request with "stream": true. Errors: Q_CANCELLED (stop), those of http_call, Q_INVALID
 * (rejected by the server), Q_UNAVAILABLE (the stream ended with an error). */
FALLIBLE chat_stream(const struct chat_peer *peer, const json_t *body, struct chat_answer *a,
                     struct q_err *e);
/* The names of the server's models, an array of strings. Errors: as chat_stream. */
FALLIBLE chat_models(const struct chat_peer *peer, json_t **names, struct q_err *e);

#endif
