/* SPDX-License-Identifier: Apache-2.0 */
/* log_tail - keeps the last lines of a log that another program writes into a pipe.
 *
 * A thread empties the pipe, so that the writer never waits, and keeps LOG_TAIL_BYTES. The thread
 * owns pipe and bytes from log_tail_start until log_tail_end has joined it. Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_LOG_TAIL_H
#define QUIRE_FRONTEND_CLI_LOG_TAIL_H
#include <pthread.h>
#include <stdbool.h>
#include "common/buf.h"

#define LOG_TAIL_BYTES 16384

struct log_tail { /* all zero is the empty value */
    pthread_t thread;
    bool runs;
    int fd;
    uint64_t n_byte; /* read in all */
    char ring[LOG_TAIL_BYTES];
};
/* fd: the end to read, which becomes the tail's, also after an error. Errors: Q_IO. */
FALLIBLE log_tail_start(struct log_tail *t, int fd, struct q_err *e);
/* Wait up to wait_ms for the last writer to close the pipe, then append the whole lines that are
 * kept. out NULL: the lines are discarded. A tail that does not run has none. */
void log_tail_end(struct log_tail *t, int wait_ms, struct buf *out);

#endif
