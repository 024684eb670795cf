/* SPDX-License-Identifier: Apache-2.0 */
/* load - many requests to one server, each sent when it is due, answers streamed.
 *
 * One thread, libcurl on epoll. A request's body is made before it is due; its times are taken when
 * libcurl hands the bytes over. Connections are kept for later requests. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_LOAD_H
#define QUIRE_ENGINE_BENCH_LOAD_H
#include <stdbool.h>
#include <stddef.h>
#include "engine/bench/serve_stats.h"

struct load_config {
    const char *url;            /* to post to */
    const char *const *headers; /* [n_header] "Name: value" */
    size_t n_header;
    double timeout_s;  /* of one request */
    uint32_t open_max; /* requests open at once; 0 = no limit */
    /* The body of request i, as JSON. */
    enum q_code (*body)(void *ctx, size_t i, struct buf *out, struct q_err *e);
    /* Called periodically, for progress; false: stop and discard unfinished requests. */
    bool (*tell)(void *ctx, size_t n_sent, size_t n_done, uint64_t n_piece);
    void *ctx;
};
struct load_result {
    struct serve_record *records; /* [n], the caller's; input and output lengths are preset to
                                   * the requested ones */
    struct samples pauses;        /* ITL, ms, of all requests that were sent */
};
/* due_s: [n] ascending, seconds from now. A failed request has the reason in its record; the run
 * continues. Errors: Q_IO (epoll, libcurl), Q_NO_MEMORY, those of body. */
FALLIBLE load_run(const struct load_config *c, const double *due_s, size_t n,
                  struct load_result *out, struct q_err *e);

struct load_answer {
    long status; /* HTTP */
    struct buf body;
};
/* One GET, waiting. Errors: Q_UNAVAILABLE (no server, or a timeout). */
FALLIBLE load_get(const struct load_config *c, const char *url, struct load_answer *out,
                  struct q_err *e);

#endif
