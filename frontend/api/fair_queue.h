/* SPDX-License-Identifier: Apache-2.0 */
/* fair_queue - the order in which long bodies are processed by threads.
 *
 * A pool of n_thread threads; bodies are in LANES lanes by size, each lane for four times the size
 * of the previous one. At most n_thread - c bodies of lane c and above are processed, so that for
 * every body there is a thread that longer ones cannot occupy. Within this limit the shortest lane
 * goes first; a lane passed over LANES_PATIENCE times goes before the others. Inside a lane API
 * keys share by bytes (start-time fair queueing): a key with a thousand prompts does not delay the
 * first prompt of another. This module is the policy only: no thread, no clock. Threads: the
 * loop's. */
#ifndef QUIRE_FRONTEND_API_FAIR_QUEUE_H
#define QUIRE_FRONTEND_API_FAIR_QUEUE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define LANES                 4
#define FAIR_QUEUE_FIRST      ((size_t)128 << 10) /* bytes; shorter bodies are of lane 0 */
#define FAIR_QUEUE_PATIENCE   16
#define FAIR_QUEUE_WAIT_MAX   1024 /* bodies */
#define FAIR_QUEUE_THREAD_MIN 4

struct fair_queue_job { /* embedded in its owner; linked while it waits */
    struct fair_queue_job *next;
    size_t bytes;
    uint64_t key;   /* its API key */
    uint64_t start; /* in the lane's virtual bytes */
    uint32_t lane;
};
struct fair_queue {
    struct fair_queue_job *wait[LANES]; /* by start, then as they came */
    uint64_t now[LANES];                /* start of the last job taken */
    uint32_t passed[LANES];             /* times other lanes went first while a job was ready */
    uint32_t n_busy[LANES];
    uint32_t n_wait, n_thread;
};
void fair_queue_init(struct fair_queue *l, uint32_t n_thread); /* at least LANES_THREAD_MIN */
uint32_t fair_queue_n_busy(const struct fair_queue *l);
/* Add a body of `bytes`. Errors: Q_NO_SPACE. */
FALLIBLE fair_queue_add(struct fair_queue *l, struct fair_queue_job *job, size_t bytes,
                        uint64_t key, struct q_err *e);
/* The job to start now; it is busy until fair_queue_done. NULL: no job or no free thread. */
struct fair_queue_job *fair_queue_next(struct fair_queue *l);
void fair_queue_done(struct fair_queue *l, const struct fair_queue_job *job);
void fair_queue_remove(struct fair_queue *l, struct fair_queue_job *job); /* remove a waiting job */

#endif
