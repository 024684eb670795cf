/* SPDX-License-Identifier: Apache-2.0 */
/* lanes - the order in which long bodies are processed by threads.
 *
 * A pool of n_thread threads; bodies are in LANES lanes by size, each lane for four times the size
 * of the previous one. At most n_thread - c bodies of lane c and above are processed, so that for
 * every body there is a thread that longer ones cannot occupy. Within this limit the shortest lane
 * goes first; a lane passed over LANES_PATIENCE times goes before the others. Inside a lane API
 * keys share by bytes (start-time fair queueing): a key with a thousand prompts does not delay the
 * first prompt of another. This module is the policy only: no thread, no clock. Threads: the
 * loop's. */
#ifndef QUIRE_FRONTEND_API_LANES_H
#define QUIRE_FRONTEND_API_LANES_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define LANES            4
#define LANES_FIRST      ((size_t)128 << 10) /* bytes; shorter bodies are of lane 0 */
#define LANES_PATIENCE   16
#define LANES_WAIT_MAX   1024 /* bodies */
#define LANES_THREAD_MIN 4

struct lane_job { /* embedded in its owner; linked while it waits */
    struct lane_job *next;
    size_t bytes;
    uint64_t key;   /* its API key */
    uint64_t start; /* in the lane's virtual bytes */
    uint32_t lane;
};
struct lanes {
    struct lane_job *wait[LANES]; /* by start, then as they came */
    uint64_t now[LANES];          /* start of the last job taken */
    uint32_t passed[LANES];       /* times other lanes went first while a job was ready */
    uint32_t n_busy[LANES];
    uint32_t n_wait, n_thread;
};
void lanes_init(struct lanes *l, uint32_t n_thread); /* at least LANES_THREAD_MIN */
uint32_t lanes_n_busy(const struct lanes *l);
/* Add a body of `bytes`. Errors: Q_NO_SPACE. */
FALLIBLE lanes_add(struct lanes *l, struct lane_job *job, size_t bytes, uint64_t key,
                   struct q_err *e);
/* The job to start now; it is busy until lanes_done. NULL: none waits, or no thread is free. */
struct lane_job *lanes_next(struct lanes *l);
void lanes_done(struct lanes *l, const struct lane_job *job);
void lanes_remove(struct lanes *l, struct lane_job *job); /* remove a waiting job */

#endif
