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
#include "engine/core/core.h"

#define SERVER_LISTEN_MAX    16
#define SERVER_FRONTENDS_MAX 256
#define SERVER_SILENT_BEATS  5 /* heartbeats a frontend may miss, */
#define SERVER_SILENT_MIN_MS \
    3000 /* and it may be silent so long: a busy machine is not a dead process */

enum server_exit {                     /* exit codes of quire-engine; never 0 after a failure */
                   SERVER_EXIT_OK = 0, /* SIGTERM or SIGINT, drained or timed out */
                   SERVER_EXIT_USAGE = 2,
                   SERVER_EXIT_LOAD = 3,    /* the model cannot be loaded */
                   SERVER_EXIT_WORKER = 4,  /* the worker died too often */
                   SERVER_EXIT_ADDRESS = 5, /* an address cannot be listened on */
                   SERVER_EXIT_INTERNAL = 6 /* anything else; the log says what */
};

struct server_config {
    struct core_config core;
    const char *model_name;    /* as the user gave it */
    const char *const *listen; /* [n_listen] addresses */
    uint32_t n_listen;
    const char *keys_dir;
    bool insecure_tcp;
    const char *weights_file; /* a reload is kept there for the next engine; NULL = nowhere */
    uint32_t heartbeat_ms, max_frontend_reqs;
    uint32_t shutdown_timeout_ms;
};

/* Listen, load, serve until a signal or a failure, which is logged. SIGTERM and SIGINT must be
 * blocked in all threads before the call. */
enum server_exit server_run(const struct server_config *c);

#endif
