/* SPDX-License-Identifier: Apache-2.0 */
/* launch - the ranks of a run on one machine as processes, and what happens when one ends.
 *
 * The launcher starts n copies of the program with sockets between them, forwards SIGTERM,
 * SIGINT and SIGHUP once (the ranks finish their step; a second one kills them), and waits.
 * Standard output of the ranks is that of the launcher; lines of their standard error get "rank N: "
 * in front, JSON lines stay as they are. A rank that dies ends all others within seconds; the cause
 * (signal or exit code, rank, last log line) is in the log, and the run starts again from its last
 * state, at most max_restarts times, unless the exit code says that it would end in the same way.
 * Ranks never outlive the launcher. Threads: main, before others start. */
#ifndef QUIRE_ENGINE_DISTILL_LAUNCH_H
#define QUIRE_ENGINE_DISTILL_LAUNCH_H
#include <stdint.h>
#include <stdbool.h>
#include "common/err.h"

/* Exit codes of the program: a failure is never 0. */
enum launch_exit {
    LAUNCH_EXIT_OK = 0,
    LAUNCH_EXIT_USAGE = 2, /* options, folders, data, sizes: a restart would end in the same way */
    LAUNCH_EXIT_INTERNAL = 6, /* other errors; see the log */
    LAUNCH_EXIT_NUMBERS = 7,  /* the loss or the norm is no number, too many steps in a row */
    LAUNCH_EXIT_PEER = 8,     /* of a rank: another rank has ended or failed, not this one */
    LAUNCH_EXIT_SIGNAL = 128, /* plus the number of the signal that ended a rank */
};
/* The exit code of a rank for the error with which it ends; peer_failed: transport_peer_failed. */
int launch_exit_code(enum q_code rc, bool peer_failed);

struct launch_options {
    uint32_t n_rank;
    uint32_t n_thread; /* of all ranks together, each has its part and its processors; 0: as many as
                        * processors may be used */
    uint32_t max_restarts;
    const char *program; /* NULL: that of this process */
    char *const *argv;   /* of the ranks: that of this program */
};
/* Is this process a rank that launcher or mpirun have started? */
bool launch_is_rank(void);
/* Times that the ranks of this run were started again after a death, 0 in the first run and without
 * a launcher. A rank with a number above 0 resumes from the newest state, if there is one. */
uint32_t launch_n_restart(void);
/* Threads of this rank by the launcher's division; 0: no launcher. */
uint32_t launch_n_thread(void);
/* The exit code of the run is that of the rank that caused its end. Errors: Q_INVALID (more ranks
 * than TRANSPORT_RANKS_MAX), Q_IO, Q_NO_MEMORY: no rank was started. */
FALLIBLE launch_run(const struct launch_options *o, int *exit_code, struct q_err *e);

#endif
