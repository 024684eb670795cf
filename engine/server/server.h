/* SPDX-License-Identifier: Apache-2.0 */
/* server - an engine core that frontends reach over the wire.
 *
 * One loop owns the core, the listening sockets and the table of frontends. A frontend is
 * greeted (hello: wire version, digest, credit), then submits and aborts; each settled step
 * gives every frontend with a share in it one message. A frontend that is silent, gone or too
 * slow to take its frames loses its requests, and no other frontend notices. While the model
 * loads, hellos are answered with "loading 43 %". Threads: server_run keeps the calling thread. */
#ifndef QUIRE_ENGINE_SERVER_SERVER_H
#define QUIRE_ENGINE_SERVER_SERVER_H
#include "engine/server/server_config.h"

enum server_exit {                     /* exit codes of quire-engine; never 0 after a failure */
                   SERVER_EXIT_OK = 0, /* SIGTERM or SIGINT, drained or timed out */
                   SERVER_EXIT_USAGE = 2,
                   SERVER_EXIT_LOAD = 3,    /* the model cannot be loaded */
                   SERVER_EXIT_WORKER = 4,  /* the worker died too often */
                   SERVER_EXIT_ADDRESS = 5, /* an address cannot be listened on */
                   SERVER_EXIT_INTERNAL = 6 /* anything else; the log says what */
};

/* Listen, load, serve until a signal or a failure, which is logged. SIGTERM and SIGINT must be
 * blocked in all threads before the call. */
enum server_exit server_run(const struct server_config *c);

#endif
