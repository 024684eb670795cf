/* SPDX-License-Identifier: Apache-2.0 */
/* batch - the work of `quire run-batch`: lines in, requests through the API's handlers, lines out.
 *
 * As many lines are open as keep the engine full (a window by count and by bytes), so memory does
 * not grow with the file. A line is written as soon as it is answered. What the engine has no room
 * for now (429, 503) is tried again and never written. Threads: the loop's thread. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_H
#define QUIRE_FRONTEND_CLI_BATCH_H
#include "frontend/api/app.h"
#include "frontend/cli/batch_ids.h"
#include "frontend/cli/batch_in.h"
#include "frontend/cli/batch_out.h"

struct batch_item;

struct batch_count {                       /* of this run */
    uint64_t n_line;                       /* of the input, blank ones not counted */
    uint64_t n_answered, n_refused, n_bad; /* status 200, another one, no request at all */
    uint64_t n_before;                     /* done by an earlier run */
    uint64_t n_retry;
    uint64_t prompt_tokens, completion_tokens;
    uint64_t bytes; /* of the input, done with */
};

struct batch {
    struct app *app; /* borrowed */
    struct batch_in in;
    struct batch_out out;
    struct batch_ids ids;
    struct batch_item *open; /* with the handlers */
    struct batch_item *over; /* answered, to be freed */
    struct batch_item *wait; /* to be tried again */
    uint32_t n_open;         /* all but `over` */
    uint32_t open_max;
    size_t open_bytes;
    bool began; /* the model is read, and so are lines */
    bool ended, stopping;
    uv_async_t turn; /* after an answer: free and go on */
    uv_timer_t tick; /* retries, progress */
    void (*on_tick)(void *ctx);
    void (*on_end)(void *ctx); /* all is done, or error.code is set */
    void *ctx;
    struct q_err error;
    struct batch_count count;
};

/* Open both files and begin. b->app, open_max, on_tick, on_end and ctx are set, the rest is zero.
 * Errors: those of batch_in_open, batch_out_open. */
FALLIBLE batch_begin(struct batch *b, const char *input, const char *output, struct q_err *e);
/* Give open requests up and take no more. */
void batch_stop(struct batch *b);

#endif
