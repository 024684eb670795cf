/* SPDX-License-Identifier: Apache-2.0 */
/* batch - the processing of `quire run-batch`: lines in, requests through the API's handlers, lines
 * out.
 *
 * Enough lines are open to fill the engine (a window by count and by bytes), so memory is
 * independent of the file's size. A result is written when it is complete. Rejections for lack of
 * room (429, 503) are retried and never written. Threads: the loop's thread. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_H
#define QUIRE_FRONTEND_CLI_BATCH_H
#include "frontend/api/app.h"
#include "frontend/cli/batch_ids.h"
#include "frontend/cli/batch_in.h"
#include "frontend/cli/batch_out.h"

struct batch_item;

struct batch_count {                       /* of this run */
    uint64_t n_line;                       /* of the input, blank ones not counted */
    uint64_t n_answered, n_refused, n_bad; /* status 200, another status, not a request */
    uint64_t n_before;                     /* done by an earlier run */
    uint64_t n_retry;
    uint64_t prompt_tokens, completion_tokens;
    uint64_t bytes; /* input bytes processed */
};

struct batch {
    struct app *app; /* borrowed */
    struct batch_in in;
    struct batch_out out;
    struct batch_ids ids;
    struct batch_item *open; /* with the handlers */
    struct batch_item *over; /* completed, to be freed */
    struct batch_item *wait; /* to be retried */
    uint32_t n_open;         /* all but `over` */
    uint32_t open_max;
    size_t open_bytes;
    bool began; /* the model is loaded, lines are read */
    bool ended, stopping;
    uv_async_t turn; /* after a response: free and continue */
    uv_timer_t tick; /* retries, progress */
    void (*on_tick)(void *ctx);
    void (*on_end)(void *ctx); /* the end, or error.code is set */
    void *ctx;
    struct q_err error;
    struct batch_count count;
};

/* Open both files and start. b->app, open_max, on_tick, on_end and ctx are set, the rest is zero.
 * Errors: those of batch_in_open, batch_out_open. */
FALLIBLE batch_begin(struct batch *b, const char *input, const char *output, struct q_err *e);
/* Abort open requests and start no more. */
void batch_stop(struct batch *b);

#endif
