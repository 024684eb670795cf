/* SPDX-License-Identifier: Apache-2.0 */
/* launch - the ranks of a run on one machine as processes, and what happens when one ends.
 *
 * The launcher starts n copies of the program with sockets between them, forwards SIGTERM and
 * SIGINT (the ranks finish their step), and waits. A rank that dies ends all others within
 * seconds; the cause (signal or exit code, rank, last log line) is in the log, and the run starts
 * again from its last state, at most max_restarts times. Threads: main. */
#ifndef QUIRE_ENGINE_DISTILL_LAUNCH_H
#define QUIRE_ENGINE_DISTILL_LAUNCH_H
#include <stdint.h>
#include <stdbool.h>
#include "common/err.h"

struct launch_options {
    uint32_t n_rank;
    uint32_t n_thread; /* of all ranks together; each gets its part and its processors */
    uint32_t max_restarts;
    char *const *argv; /* of the ranks: that of this program */
};
/* Is this process a rank that launcher or mpirun have started? */
bool launch_is_rank(void);
/* Returns the exit code of the run. */
FALLIBLE launch_run(const struct launch_options *o, int *exit_code, struct q_err *e);

#endif
