/* SPDX-License-Identifier: Apache-2.0 */
#include "common/queue.h"
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "common/mem.h"

#define CAP_MIN 16

enum q_code queue_init(struct queue *q, size_t size, size_t n_max, bool watched, struct q_err *e)
{
    *q = (struct queue){.size = size, .n_max = n_max, .fd = -1};
    if (watched) {
        q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (q->fd < 0)
            return q_fail(e, Q_IO, "queue: eventfd: %s", strerror(errno));
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->not_empty, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&q->lock, NULL);
    q->made = true;
    return Q_OK;
}

void queue_release(struct queue *q)
{
    if (!q->made)
        return;
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->not_empty);
    if (q->fd >= 0)
        close(q->fd);
    q_free(q->items);
    *q = (struct queue)QUEUE_INIT;
}

/* Make the ring longer; its items move to the front. */
static enum q_code grow(struct queue *q, size_t cap, struct q_err *e)
{
    cap = cap < q->n_max ? cap : q->n_max;
    unsigned char *items = q_calloc(cap, q->size);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "queue: out of memory for %zu items", cap);
    size_t first = q->cap - q->head < q->n ? q->cap - q->head : q->n;
    if (q->n) {
        memcpy(items, q->items + q->head * q->size, first * q->size);
        memcpy(items + first * q->size, q->items, (q->n - first) * q->size);
    }
    q_free(q->items);
    q->items = items;
    q->cap = cap;
    q->head = 0;
    return Q_OK;
}

enum q_code queue_reserve(struct queue *q, struct q_err *e)
{
    pthread_mutex_lock(&q->lock);
    enum q_code rc = q->cap < q->n_max ? grow(q, q->n_max, e) : Q_OK;
    pthread_mutex_unlock(&q->lock);
    return rc;
}

static enum q_code push_locked(struct queue *q, const void *item, struct q_err *e)
{
    enum q_code rc;
    if (q->closed)
        return q_fail(e, Q_CANCELLED, "queue: closed");
    if (q->n >= q->n_max)
        return q_fail(e, Q_NO_SPACE, "queue: full with %zu items", q->n);
    if (q->n == q->cap && (rc = grow(q, q->cap ? q->cap * 2 : CAP_MIN, e)))
        return rc;
    memcpy(q->items + (q->head + q->n++) % q->cap * q->size, item, q->size);
    return Q_OK;
}

/* The unlock is the last access: a reader may release the queue right after it. */
enum q_code queue_push(struct queue *q, const void *item, struct q_err *e)
{
    uint64_t one = 1;
    pthread_mutex_lock(&q->lock);
    enum q_code rc = push_locked(q, item, e);
    if (!rc) {
        pthread_cond_signal(&q->not_empty);
        if (q->fd >= 0 && q->n == 1) {
            ssize_t ignored = write(q->fd, &one, sizeof one);
            (void)ignored; /* EAGAIN: readable anyway */
        }
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

static bool wait_item(struct queue *q, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    while (!q->n && !q->closed) {
        if (timeout_ms < 0)
            pthread_cond_wait(&q->not_empty, &q->lock);
        else if (timeout_ms == 0 ||
                 pthread_cond_timedwait(&q->not_empty, &q->lock, &until) == ETIMEDOUT)
            break;
    }
    return q->n > 0;
}

bool queue_pop(struct queue *q, void *item, int timeout_ms)
{
    uint64_t n;
    pthread_mutex_lock(&q->lock);
    bool here = wait_item(q, timeout_ms);
    if (here) {
        memcpy(item, q->items + q->head * q->size, q->size);
        q->head = (q->head + 1) % q->cap;
        q->n--;
    }
    if (q->fd >= 0 && !q->n && !q->closed) {
        ssize_t ignored = read(q->fd, &n, sizeof n);
        (void)ignored; /* EAGAIN: nothing was announced */
    }
    pthread_mutex_unlock(&q->lock);
    return here;
}

void queue_close(struct queue *q)
{
    uint64_t one = 1;
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->not_empty);
    if (q->fd >= 0) {
        ssize_t ignored = write(q->fd, &one, sizeof one);
        (void)ignored; /* EAGAIN: readable anyway */
    }
    pthread_mutex_unlock(&q->lock);
}

bool queue_closed(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool closed = q->closed && !q->n;
    pthread_mutex_unlock(&q->lock);
    return closed;
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}
