/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor - what quire-serve gives its children, and how a child is started.
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
#define CHILD_NO_PROGRAM 127 /* exit code: the executable could not be run */

struct outside { /* what outlives the children */
    struct net_sockets listening;
    int metrics_fd;         /* the shared table of metrics */
    int ready_pipe[2];      /* frontends write their slot */
    char dir[PATH_MAX];     /* private folder, mode 0700 */
    char address[PATH_MAX]; /* ipc:// in it */
    char url[320];
};
/* Bind o->host and o->port, make folder, table and pipe. Errors: Q_IO (the address), Q_INTERNAL;
 * outside_release all the same. */
FALLIBLE outside_init(struct outside *s, const struct options *o, struct q_err *e);
/* The private folder and address alone: a supervisor without frontends. */
FALLIBLE outside_init_private(struct outside *s, struct q_err *e);
void outside_release(struct outside *s); /* also removes the folder */

struct child {
    char name[32]; /* "engine", "frontend 2" */
    char *argv[CHILD_ARGS_MAX];
    const struct outside *outside;
    bool is_frontend;
    uint32_t slot, n_slot; /* frontends: of the metrics */
    pid_t pid;             /* 0 = not running */
    bool ready;
    uint32_t n_failure;             /* quick deaths in a row */
    int64_t started_ms, restart_ms; /* restart_ms 0 = none due */
};
/* The engine and o->frontends frontends, not started. */
FALLIBLE children_init(struct child *children, uint32_t *n, const struct outside *s,
                       const struct options *o, struct q_err *e);
struct check { /* a child that only checks its arguments (common/start.h) */
    pid_t pid;
    int fd;           /* what it says */
    const char *name; /* of the program */
};
/* Begin to ask a child whether it could start. Errors: Q_IO. */
FALLIBLE check_begin(struct check *k, const struct child *c, struct q_err *e);
/* Wait for its answer. 0, or the code it would end with, and `e` says why (code Q_INVALID). */
int check_end(struct check *k, struct q_err *e);
/* Fork and exec. The child dies when the supervisor does. Errors: Q_IO. */
FALLIBLE child_start(struct child *c, struct q_err *e);

#endif
