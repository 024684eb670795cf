/* SPDX-License-Identifier: Apache-2.0 */
/* server - an engine core served to frontends over the wire.
 *
 * One loop owns the core, the listening sockets and the table of frontends. A frontend receives
 * hello (wire version, digest, credit), then submits and aborts; each settled step sends one
 * message to every frontend with output in it. A frontend that times out, disconnects or does not
 * read its frames loses its requests, without effect on other frontends. While the model loads, the
 * reply to hello is "loading 43 %". Threads: server_run uses the calling thread. */
#ifndef QUIRE_ENGINE_SERVER_SERVER_H
#define QUIRE_ENGINE_SERVER_SERVER_H
#include "engine/server/server_config.h"

/* exit codes of quire-engine; never 0 after a failure */
enum server_exit {
    SERVER_EXIT_OK = 0, /* SIGTERM or SIGINT, drained or timed out */
    SERVER_EXIT_USAGE = 2,
    SERVER_EXIT_LOAD = 3,     /* the model cannot be loaded */
    SERVER_EXIT_WORKER = 4,   /* the worker crashed too often */
    SERVER_EXIT_ADDRESS = 5,  /* an address cannot be listened on */
    SERVER_EXIT_INTERNAL = 6, /* other errors; see the log */
    SERVER_EXIT_HANGS = 7     /* its loop stood still, and no supervisor watches it */
};

/* Listen, load, serve until a signal or a failure, which is logged. SIGTERM and SIGINT must be
 * blocked in all threads before the call. */
enum server_exit server_run(const struct server_config *c);

#endif
