/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_url - log-probabilities of sequences from a server that runs (teacher_answer.h), several
 * requests at a time. What a server refuses for a while (429, 502, 503, 504, no connection) is
 * asked again after a growing time, or the one that the server names.
 * Threads: the calls of struct teacher_url_calls come from the owner's. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_URL_H
#define QUIRE_ENGINE_DISTILL_TEACHER_URL_H
#include <stdatomic.h>
#include <stdbool.h>
#include "engine/distill/teacher_shard.h"

#define TEACHER_CONNECTIONS_MAX 256u

struct teacher_url_options {
    const char *url;     /* http://host:8000, with /v1 or without */
    const char *model;   /* "": the first one of the server */
    const char *api_key; /* "": none */
    uint32_t top_k, n_connection;
    uint32_t n_retry;  /* of a request, one after another */
    double timeout_s;  /* of a request */
    double backoff_s;  /* the first; 0: half a second */
    atomic_bool *stop; /* becomes true: no more requests, Q_CANCELLED. May be NULL */
};

struct teacher_url_sample { /* borrowed until the next call of `next` */
    const uint32_t *ids;
    const int32_t *labels; /* of rows */
    uint32_t n, n_counted; /* n_counted above 0 */
};
struct teacher_url_rows {
    uint32_t n_row, n_counted;
    struct teacher_key key;
    const uint32_t *ids; /* [n_counted][top_k] */
    const float *logprobs;
};
struct teacher_url_calls {
    /* *end: there is none left. */
    enum q_code (*next)(void *ctx, struct teacher_url_sample *s, bool *end, struct q_err *e);
    /* In the order of `next`. */
    enum q_code (*take)(void *ctx, const struct teacher_url_rows *rows, struct q_err *e);
    void *ctx;
};

struct teacher_url;
/* Asks the server for its models, with retries. Errors: Q_INVALID (option), Q_UNAVAILABLE (no
 * connection, or an error of the server), Q_UNAUTHORIZED, Q_NO_MEMORY. */
FALLIBLE teacher_url_open(struct teacher_url **out, const struct teacher_url_options *o,
                          struct q_err *e);
void teacher_url_close(struct teacher_url *t);
const char *teacher_url_model(const struct teacher_url *t);
/* Until `next` ends. Errors: those of calls; Q_UNAVAILABLE, Q_UNAUTHORIZED, Q_INVALID (what the
 * server says), Q_CORRUPT, Q_UNSUPPORTED (its response), Q_CANCELLED, Q_NO_MEMORY. What comes
 * before the sequence with the error was taken. */
FALLIBLE teacher_url_run(struct teacher_url *t, const struct teacher_url_calls *calls,
                         struct q_err *e);

#endif
