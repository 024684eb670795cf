/* SPDX-License-Identifier: Apache-2.0 */
/* lanes - which of the long bodies that wait for a thread is read next.
 *
 * A pool of n_thread threads; bodies in LANES lanes by size, each for four times the one before. Of
 * lane c and above at most n_thread - c are being read, so that for every body
 * there is a thread which no longer one can hold: nobody waits behind another's longer prompt.
 * Within that the shortest lane goes first; a lane that others were preferred to LANES_PATIENCE
 * times goes before them. Inside a lane API keys share by bytes (start-time fair queueing): one
 * that sends a thousand prompts does not delay another's first.
 * The policy alone: no thread, no clock. Threads: the loop's. */
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
    uint64_t key;   /* whose it is */
    uint64_t start; /* in the lane's virtual bytes */
    uint32_t lane;
};
struct lanes {
    struct lane_job *wait[LANES]; /* by start, then as they came */
    uint64_t now[LANES];          /* start of the one taken last */
    uint32_t passed[LANES];       /* times others went first while one could have gone */
    uint32_t n_busy[LANES];
    uint32_t n_wait, n_thread;
};
void lanes_init(struct lanes *l, uint32_t n_thread); /* at least LANES_THREAD_MIN */
uint32_t lanes_n_busy(const struct lanes *l);
/* A body of `bytes` waits from now on. Errors: Q_NO_SPACE. */
FALLIBLE lanes_add(struct lanes *l, struct lane_job *job, size_t bytes, uint64_t key,
                   struct q_err *e);
/* The job to begin now; it is busy until lanes_done. NULL: none waits, or there is no thread. */
struct lane_job *lanes_next(struct lanes *l);
void lanes_done(struct lanes *l, const struct lane_job *job);
void lanes_remove(struct lanes *l, struct lane_job *job); /* it waits no longer */

#endif
