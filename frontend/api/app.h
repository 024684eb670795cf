/* SPDX-License-Identifier: Apache-2.0 */
/* app - what all endpoints of one frontend process share.
 *
 * app_run is the program: it listens first, reads the tokenizer on another thread, greets the
 * engine, and serves until SIGTERM or SIGINT. Requests that come before the model is read are
 * answered 503 with Retry-After. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_API_APP_H
#define QUIRE_FRONTEND_API_APP_H
#include <uv.h>
#include "frontend/api/served.h"
#include "frontend/api/task.h"
#include "frontend/http/exchange.h"
#include "frontend/http/server.h"
#include "frontend/link/link.h"

/* What a frontend tells its supervisor (QUIRE_READY_FD): its slot when it is ready, or this. */
#define APP_ENGINE_HANGS 0xff

struct early;  /* a request that waits for the model */
struct scrape; /* one of /metrics, until the engine's figures are fresh: status.c */
struct wish;   /* one that waits for the engine: control.c */

struct app {
    const struct options *options;
    uv_loop_t loop;
    struct tasks tasks;
    struct served served;
    struct http_server *server;
    struct cors cors;  /* of --allowed-origins and its kin */
    struct link *link; /* NULL until the model is read */
    uv_signal_t sigterm, sigint;
    uv_timer_t deadline; /* of draining */
    uv_timer_t gauge;
    uv_work_t loading;
    struct early *early; /* newest first */
    struct wish *wishes;
    struct scrape *scrapes;
    uint64_t n_order; /* given to the engine */
    struct q_err load_error;
    bool reading; /* a thread reads the model */
    bool loaded, draining, announced;
    int exit_code;
};

/* Serve until told to stop. Returns the exit code. */
int app_run(const struct options *o);
/* A frontend without a port, for a program that has the requests itself (http/local.h) and runs
 * a->loop: begins to read the model (positional[0]) and connects to o->engine. Requests may come at
 * once. When the model cannot be read, the loop is stopped with exit_code set. `a` is zeroed.
 * Errors: those of served_open, Q_INVALID (--tool-call-parser). */
FALLIBLE app_open(struct app *a, const struct options *o, struct q_err *e);
/* Disconnect, when the loop runs no more; ends the process with exit_code if threads still work. */
void app_close(struct app *a);

/* May the request be served now? False: not yet, `again` is called with it once the model is read;
 * or no more (503 is sent). */
bool app_available(struct app *a, struct http_exchange *x, http_handler *again);
/* Why /ready is not 200, appended as JSON strings with commas; nothing when it is. */
void app_reasons(const struct app *a, struct buf *out);
uint32_t app_max_model_len(const struct app *a); /* tokens of prompt and output */

/* Answer with what is in e; param as in OpenAI's error object, NULL or "" for null. */
void app_reply_error(struct http_exchange *x, const struct q_err *e, const char *param);

/* The engine told its figures (status.c); ctx is the app. */
void status_told(void *app);
/* The engine answers an order (control.c); ctx is the app. */
void control_ordered(void *app, const struct msg_ordered *m);

/* The handlers of routes.def. */
#define ROUTE(method, path, auth, handler, about) void handler(void *app, struct http_exchange *x);
#include "frontend/api/routes.def"

#endif
