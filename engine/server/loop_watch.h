/* SPDX-License-Identifier: Apache-2.0 */
/* loop_watch - ends an engine whose loop stands still, where no supervisor does: what restarts the
 * process (a container, systemd) then starts it again, and frontends submit their requests again.
 *
 * A thread wakes once a second and counts the seconds in which the loop made no turn. They are
 * seconds of its own, so an engine that was stopped (SIGSTOP, a suspended machine) is not ended
 * when it goes on. Threads: loop_watch_turn by the loop; the others by one thread. */
#ifndef QUIRE_ENGINE_SERVER_LOOP_WATCH_H
#define QUIRE_ENGINE_SERVER_LOOP_WATCH_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define LOOP_WATCH_BEATS \
    10 /* of the loop, which makes a turn each; as frontends count (link.c) … */
#define LOOP_WATCH_MIN_S 10 /* … and at least so long */

struct loop_watch {
    atomic_uint_least64_t n_turn;
    uint32_t limit_s;
    void (*hangs)(uint32_t seconds); /* called by the thread; ends the process */
    pthread_mutex_t lock;
    pthread_cond_t ends;
    bool stopping, running;
    pthread_t thread;
};
/* The loop makes a turn every heartbeat_ms at least. Errors: Q_NO_MEMORY. */
FALLIBLE loop_watch_start(struct loop_watch *w, uint32_t heartbeat_ms,
                          void (*hangs)(uint32_t seconds), struct q_err *e);
static inline void loop_watch_turn(struct loop_watch *w)
{
    atomic_fetch_add_explicit(&w->n_turn, 1, memory_order_relaxed);
}
void loop_watch_stop(struct loop_watch *w); /* also of one that is not started */

struct loop_watch_count { /* what the thread keeps */
    uint64_t n_turn;
    uint32_t n_still;
};
/* Another second is over: the seconds without a turn up to now. */
uint32_t loop_watch_second(struct loop_watch_count *c, uint64_t n_turn);

#endif
