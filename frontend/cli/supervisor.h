/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor - the resources that quire-serve passes to its children, and the start of a child.
 * Threads: main only. */
#ifndef QUIRE_FRONTEND_CLI_SUPERVISOR_H
#define QUIRE_FRONTEND_CLI_SUPERVISOR_H
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>
#include "common/metrics.h"
#include "common/net.h"
#include "common/options.h"

#define CHILD_ARGS_MAX   400
#define CHILD_NO_PROGRAM 127 /* exit code: the executable cannot be run */

struct supervisor_resources { /* resources that outlive the children */
    struct net_sockets listening;
    struct net_path path;   /* of a Unix socket */
    int metrics_fd;         /* the shared table of metrics */
    int ready_pipe[2];      /* frontends write their slot */
    char dir[PATH_MAX];     /* private folder, mode 0700 */
    char address[PATH_MAX]; /* ipc:// in it */
    char url[320];
};
/* Bind o->uds, or o->host and o->port; create folder, table and pipe. Errors: Q_IO (the address),
 * Q_INTERNAL; call supervisor_resources_release also after an error. */
FALLIBLE supervisor_resources_init(struct supervisor_resources *s, const struct options *o,
                                   struct q_err *e);
/* The private folder and address only: for a supervisor without frontends. */
FALLIBLE supervisor_resources_init_private(struct supervisor_resources *s, struct q_err *e);
void supervisor_resources_release(struct supervisor_resources *s); /* also removes the folder */

struct child {
    char name[32]; /* "engine", "frontend 2" */
    char *argv[CHILD_ARGS_MAX];
    const struct supervisor_resources *resources;
    bool is_frontend;
    uint32_t slot, n_slot; /* frontends: of the metrics */
    pid_t pid;             /* 0 = not running */
    bool ready;
    int64_t heard_ms;   /* frontends: the last sign of life */
    uint64_t n_oom;     /* death_oom_kills at its start */
    bool has_hung;      /* engine: it was killed because it did not respond, by itself */
    char death[128];    /* engine: how the one before ended, for the next (QUIRE_ENGINE_DEATH) */
    int n_start;        /* likewise: QUIRE_ENGINE_START */
    uint32_t n_failure; /* consecutive quick crashes */
    int64_t started_ms, restart_ms; /* restart_ms 0 = no restart due */
};
/* The engine and o->frontends frontends, not started. */
FALLIBLE children_init(struct child *children, uint32_t *n, const struct supervisor_resources *s,
                       const struct options *o, struct q_err *e);
struct check { /* a child that only checks its arguments (common/start.h) */
    pid_t pid;
    int fd;           /* its output */
    const char *name; /* of the program */
};
/* Start the check of a child's arguments. Errors: Q_IO. */
FALLIBLE check_begin(struct check *k, const struct child *c, struct q_err *e);
/* Wait for its result. 0, or the exit code of a start, with the reason in `e` (code Q_INVALID). */
int check_end(struct check *k, struct q_err *e);
/* Fork and exec. The child is killed when the supervisor exits. Errors: Q_IO. */
FALLIBLE child_start(struct child *c, struct q_err *e);

#endif
