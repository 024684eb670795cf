/* SPDX-License-Identifier: Apache-2.0 */
/* supervise - when children are started, started again, and killed.
 *
 * The decisions of quire-serve without its loop: the owner reports deaths and what frontends send,
 * and calls supervise_due when supervise_wait_ms has passed; children are started by child_start
 * and killed by kill(2). Time is clock_ms, so that tests/sim can drive it.
 *
 *     start ──▶ running ──death──▶ waits (BACKOFF_MS, doubling) ──▶ start
 *                  │                └─ more than SUPERVISE_FAILURES_MAX in a row, or a final exit
 *                  │                   code ──▶ all are stopped, exit_code is the child's
 *                  └─ no sign of life (frontends), reported to hang (engine) ──▶ killed
 *
 * A death that others caused (common/death.h) is no failure. Threads: one loop. */
#ifndef QUIRE_FRONTEND_CLI_SUPERVISE_H
#define QUIRE_FRONTEND_CLI_SUPERVISE_H
#include "frontend/cli/supervisor.h"

#define SUPERVISE_FAILURES_MAX 6 /* consecutive early failures of a child, then it gives up */

struct supervisor {
    struct options *options;
    struct supervisor_resources resources;
    struct child children[1 + METRICS_SLOTS_MAX]; /* the engine first */
    uint32_t n;
    int signals, ready_pipe; /* the owner's */
    bool stopping, said_ready;
    bool was_up; /* a frontend was connected to an engine that had loaded */
    int64_t kill_at_ms;
    int64_t looked_ms; /* the last supervise_due; 0 = none yet */
    int exit_code;
};

void supervise_start(struct supervisor *s); /* all children */
/* A process has ended; status: of waitpid. One that is no child of ours is ignored. */
void supervise_death(struct supervisor *s, pid_t pid, int status);
/* A byte of a frontend: its slot (it is connected, or its loop runs), or APP_ENGINE_HANGS. */
void supervise_hear(struct supervisor *s, unsigned char byte);
/* Stop the frontends first; the engine stays until their open requests have ended. If the engine
 * has failed for good, they are told to end these at once. The first call's exit code is kept. */
void supervise_stop(struct supervisor *s, int exit_code);
void supervise_signal(const struct supervisor *s, uint32_t from, int number); /* children from.. */
bool supervise_over(const struct supervisor *s);   /* stopping, and no child is left */
int supervise_wait_ms(const struct supervisor *s); /* to supervise_due; -1 = none is due */
/* Do what is due. What frontends have sent must have been reported before. */
void supervise_due(struct supervisor *s);

#endif
