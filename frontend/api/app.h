/* SPDX-License-Identifier: Apache-2.0 */
/* app - the shared state of all endpoints of a frontend process.
 *
 * app_run is the program: it listens first, loads the tokenizer on another thread, connects to the
 * engine, and serves until SIGTERM or SIGINT. Requests before the end of loading get 503 with
 * Retry-After. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_API_APP_H
#define QUIRE_FRONTEND_API_APP_H
#include <jansson.h>
#include <signal.h>
#include <uv.h>
#include "frontend/api/served_model.h"
#include "frontend/api/task.h"
#include "frontend/http/exchange.h"
#include "frontend/http/server.h"
#include "frontend/link/engines.h"

/* Bytes from a frontend to its supervisor (QUIRE_READY_FD): its slot when it is ready and every
 * APP_SIGN_MS afterwards, or APP_ENGINE_HANGS. */
#define APP_SIGN_MS       2000
#define APP_ENGINE_HANGS  0xff
/* From the supervisor to its frontends: the engine has failed for good. Open requests end with an
 * error now, and the frontend with them. */
#define APP_ENGINE_FAILED SIGUSR1

struct request_record;
struct early;           /* a request waiting for the model */
struct scrape;          /* a /metrics request waiting for the engine's heartbeat: status.c */
struct pending_resume;  /* a request with Last-Event-ID waiting for the engine: resume.c */
struct pending_control; /* a request waiting for a command of the engine: control.c */

struct app {
    const struct options *options;
    struct request_record *requests; /* of --record-requests; NULL = none */
    uv_loop_t loop;
    struct tasks tasks;
    struct served_model served;
    struct http_server *server;
    struct cors cors; /* of --allowed-origins and the related options */
    struct cors_list allowed_hosts;
    json_t *lists[4];        /* own the strings of allowed_hosts and of cors */
    struct engines *engines; /* NULL until the model is loaded */
    uv_signal_t sigterm, sigint, sighup, engine_failed;
    uv_timer_t deadline; /* of draining */
    uv_timer_t gauge;
    uv_work_t loading;
    struct early *early; /* newest first */
    struct pending_control *pending_controls;
    struct pending_resume *pending_resumes;
    struct scrape *scrapes;
    uint64_t n_order; /* given to the engine */
    struct q_err load_error;
    bool reading; /* a thread loads the model */
    bool loaded, draining, announced;
    int exit_code;
};

/* Serve until a signal. Returns the exit code. */
int app_run(const struct options *o);
/* A frontend without a port, for a program that makes the requests itself (http/local.h) and runs
 * a->loop: starts loading the model (positional[0]) and connects to o->engine. Requests are
 * accepted at once. If the model cannot be loaded, the loop is stopped with exit_code set. `a` is
 * zeroed.
 * Errors: those of served_model_open, Q_INVALID (--tool-call-parser). */
FALLIBLE app_open(struct app *a, const struct options *o, struct q_err *e);
/* Disconnect after the loop has stopped; ends the process with exit_code if threads are still
 * running. */
void app_close(struct app *a);

/* True if the request can be served now. False: the model is loading and `again` is called later,
 * or the server is shutting down (503 is sent). */
bool app_available(struct app *a, struct http_exchange *x, http_handler *again);
/* Why /ready is not 200, in a word for programs; "" if it is: draining, tokenizer_loading, or
 * engines_code's. */
const char *app_code(const struct app *a);
/* Append the reasons why /ready is not 200 as comma-separated JSON strings; nothing if it is. */
void app_reasons(const struct app *a, struct buf *out);
/* The inputs besides tokens that the engine's model takes; unknown before the first hello. */
void app_item_types(const struct app *a, struct item_types *out);
uint32_t app_max_model_len(const struct app *a); /* tokens of prompt and output */

/* May the request's key use the model, or its adapter of that name (NULL: none)? Errors:
 * Q_FORBIDDEN. */
FALLIBLE app_check_key(const struct app *a, const struct http_exchange *x, const char *adapter,
                       struct q_err *e);
/* Respond with the error e; param as in OpenAI's error object, NULL or "" for null. */
void app_reply_error(struct http_exchange *x, const struct q_err *e, const char *param);

/* Heartbeats of the engines arrived (status.c); ctx is the app. */
void status_told(void *app);
/* Send the engine a command; the exchange is answered when it is done (control.c). */
struct msg_command;
void control_order(struct app *a, struct http_exchange *x, struct msg_command *m);
/* The code of this name in a message; "OK" is Q_OK, an unknown one Q_INTERNAL. */
enum q_code control_code_of(struct proto_str name);
/* An engine replied to a command (control.c); ctx is the app. */
void control_command_done(void *app, uint32_t from, const struct msg_command_done *m);

/* An engine's reply to a request with Last-Event-ID (resume.c); ctx is the app. */
void resume_answered(void *app, uint32_t from, const struct msg_stream_resumed *m);

/* The handlers of routes.def. */
#define ROUTE(method, path, auth, handler, about) void handler(void *app, struct http_exchange *x);
#include "frontend/api/routes.def"

#endif
