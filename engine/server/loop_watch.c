/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/server/loop_watch.h"
#include <errno.h>
#include <string.h>
#include <time.h>

uint32_t loop_watch_second(struct loop_watch_count *c, uint64_t n_turn)
{
    c->n_still = n_turn == c->n_turn ? c->n_still + 1 : 0;
    c->n_turn = n_turn;
    return c->n_still;
}

/* False: the watch ends. */
static bool wait_second(struct loop_watch *w)
{
    struct timespec at;
    int rc = 0;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec++;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&w->ends, &w->lock, &at);
    const bool goes_on = !w->stopping;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void *thread_main(void *arg)
{
    struct loop_watch *w = arg;
    struct loop_watch_count c = {.n_turn = atomic_load(&w->n_turn)};
    while (wait_second(w))
        if (loop_watch_second(&c, atomic_load(&w->n_turn)) >= w->limit_s)
            w->hangs(c.n_still);
    return NULL;
}

FALLIBLE loop_watch_start(struct loop_watch *w, uint32_t heartbeat_ms,
                          void (*hangs)(uint32_t seconds), struct q_err *e)
{
    const uint32_t beats_s = (uint32_t)((uint64_t)heartbeat_ms * LOOP_WATCH_BEATS / 1000);
    pthread_condattr_t monotonic;
    *w = (struct loop_watch){
        .limit_s = beats_s > LOOP_WATCH_MIN_S ? beats_s : LOOP_WATCH_MIN_S,
        .hangs = hangs,
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->ends, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const int rc = pthread_create(&w->thread, NULL, thread_main, w);
    if (rc)
        return q_fail(e, Q_NO_MEMORY, "cannot start the thread that watches the loop: %s",
                      strerror(rc));
    w->running = true;
    return Q_OK;
}

void loop_watch_stop(struct loop_watch *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->ends);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->ends);
    w->running = false;
}
