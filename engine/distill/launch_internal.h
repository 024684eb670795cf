/* SPDX-License-Identifier: Apache-2.0 */
/* launch_internal - one rank as a process: its start, its log. Threads: main. */
#ifndef QUIRE_ENGINE_DISTILL_LAUNCH_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_LAUNCH_INTERNAL_H
#include <sys/types.h>
#include "engine/distill/launch.h"

/* Environment of a rank, besides that of transport_internal.h. */
#define LAUNCH_RESTARTED "QUIRE_RESTARTED"    /* 1, 2, …; not set in the first run */
#define LAUNCH_THREADS   "QUIRE_RANK_THREADS" /* of this rank */

#define LAUNCH_LINE_MAX 4096 /* bytes of a line that is forwarded whole */
#define LAUNCH_TAIL_MAX 400  /* of the last line, for the cause of an end */

struct launch_process {
    pid_t pid;       /* 0: not running */
    int status;      /* of waitpid, when it ran and pid is 0 */
    uint32_t i_end;  /* it was the i-th to end, from 1; 0: running, or not started */
    bool was_killed; /* by the launcher */
    int log_fd;      /* -1: closed */
    size_t n_line;
    char line[LAUNCH_LINE_MAX], last[LAUNCH_TAIL_MAX];
};

/* Start all ranks: o->n_rank processes. On an error those that were started are in `all` and run.
 * Errors: Q_IO. */
FALLIBLE launch_start(const struct launch_options *o, uint32_t n_restart,
                      struct launch_process *all, struct q_err *e);
/* Forward what a rank has written, in lines. */
void launch_forward(struct launch_process *p, uint32_t rank, uint32_t n_rank);
/* The rest, also of an incomplete line; the pipe is closed. */
void launch_forward_end(struct launch_process *p, uint32_t rank, uint32_t n_rank);

#endif
