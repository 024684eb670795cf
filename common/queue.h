/* SPDX-License-Identifier: Apache-2.0 */
/* queue - a queue between threads.
 *
 * Items of one size, first in, first out, copied. The queue grows to n_max items, and a push never
 * waits. A reader may wait with a timeout, or watch queue_fd in its event loop.
 * Threads: any may push and pop. */
#ifndef QUIRE_COMMON_QUEUE_H
#define QUIRE_COMMON_QUEUE_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t not_empty;
    unsigned char *items; /* [cap] of `size` bytes, a ring starting at `head` */
    size_t size, cap, head, n, n_max;
    bool closed, made;
    int fd; /* eventfd, -1 = none */
};
/* clang-format off */
#define QUEUE_INIT {.made = false}
/* clang-format on */

/* size: bytes of an item. watched: make an eventfd. Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE queue_init(struct queue *q, size_t size, size_t n_max, bool watched, struct q_err *e);
void queue_release(struct queue *q);
/* Room for n_max items at once: no later push needs memory. Errors: Q_NO_MEMORY. */
FALLIBLE queue_reserve(struct queue *q, struct q_err *e);
/* Errors: Q_NO_SPACE (n_max items wait), Q_NO_MEMORY, Q_CANCELLED (closed). */
FALLIBLE queue_push(struct queue *q, const void *item, struct q_err *e);
/* Take the first item, waiting at most timeout_ms (-1: without limit). False: no item, or the queue
 * is closed and empty. */
bool queue_pop(struct queue *q, void *item, int timeout_ms);
/* Close the queue: readers get the remaining items and then false. Cannot fail. */
void queue_close(struct queue *q);
bool queue_closed(struct queue *q);  /* and empty */
int queue_fd(const struct queue *q); /* readable while items wait; only when watched */

#endif
