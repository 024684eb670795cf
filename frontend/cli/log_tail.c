/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/log_tail.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *read_all(void *arg)
{
    struct log_tail *t = arg;
    char data[4096];
    ssize_t n;
    while ((n = read(t->fd, data, sizeof data)) > 0 || (n < 0 && errno == EINTR))
        for (ssize_t i = 0; i < n; i++)
            t->ring[t->n_byte++ % LOG_TAIL_BYTES] = data[i];
    return NULL;
}

FALLIBLE log_tail_start(struct log_tail *t, int fd, struct q_err *e)
{
    sigset_t all, before;
    int flags = fcntl(fd, F_GETFL);
    t->fd = fd;
    t->n_byte = 0;
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the owner's */
    int failed = pthread_create(&t->thread, NULL, read_all, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->runs = !failed;
    if (!failed)
        return Q_OK;
    close(fd);
    return q_fail(e, Q_IO, "cannot read the server's log: pthread_create: %s", strerror(failed));
}

void log_tail_end(struct log_tail *t, int wait_ms, struct buf *out)
{
    struct timespec until;
    if (!t->runs)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(t->thread, NULL, &until) != 0) {
        pthread_cancel(t->thread); /* it ends in its read */
        pthread_join(t->thread, NULL);
    }
    close(t->fd);
    t->runs = false;
    bool lost = t->n_byte > LOG_TAIL_BYTES; /* remove the incomplete first line */
    uint64_t at = lost ? t->n_byte - LOG_TAIL_BYTES : 0;
    while (lost && at < t->n_byte)
        lost = t->ring[at++ % LOG_TAIL_BYTES] != '\n';
    for (; out && at < t->n_byte; at++)
        buf_add_char(out, t->ring[at % LOG_TAIL_BYTES]);
}
