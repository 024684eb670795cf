/* SPDX-License-Identifier: Apache-2.0 */
/* worker_process - starting, watching and ending a worker: a child process `quire-worker`, or a
 * thread of this process.
 *
 * The program is in the folder of the running executable; the process inherits only the ring's two
 * descriptors and is killed when the thread that started it exits. Threads: the core's loop. */
#ifndef QUIRE_ENGINE_CORE_WORKER_PROCESS_H
#define QUIRE_ENGINE_CORE_WORKER_PROCESS_H
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>
#include "engine/worker/ring.h"

struct worker_process {
    struct ring *ring; /* borrowed until worker_process_end */
    pid_t pid;         /* 0 = no process */
    int pid_fd;        /* readable when the process has exited; -1 = none */
    bool has_thread;
    bool from_outside; /* it was ended by others (common/death.h) */
    uint64_t n_oom;    /* death_oom_kills at its start */
    pthread_t thread;
};
/* clang-format off */
#define WORKER_PROCESS_INIT {.ring = NULL, .pid_fd = -1}
/* clang-format on */

/* program: path of quire-worker, NULL = beside this executable.
 * Errors: Q_NOT_FOUND (no such program), Q_IO. */
FALLIBLE worker_process_start(struct worker_process *w, struct ring *ring, const char *program,
                              struct q_err *e);
FALLIBLE worker_process_start_thread(struct worker_process *w, struct ring *ring, struct q_err *e);
/* True if the process has exited; `e` has the reason ("killed by signal 9"), code Q_UNAVAILABLE,
 * and from_outside is set. A thread never exits by itself. */
bool worker_process_ended(struct worker_process *w, struct q_err *e);
/* Is or was the process stopped by others (common/death.h)? Never a thread. */
bool worker_process_was_stopped(const struct worker_process *w);
/* Is the process ending, perhaps before worker_process_ended is true (common/death.h)? */
bool worker_process_is_ending(const struct worker_process *w);
/* Request its end, wait at most timeout_ms, then kill a process (a thread is waited for). */
void worker_process_end(struct worker_process *w, int timeout_ms);

#endif
