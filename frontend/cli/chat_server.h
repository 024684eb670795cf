/* SPDX-License-Identifier: Apache-2.0 */
/* chat_server - the server of `quire chat MODEL`: a private quire-serve on a free port of this
 * machine, with a random key. It ends with its owner in every case. Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_CHAT_SERVER_H
#define QUIRE_FRONTEND_CLI_CHAT_SERVER_H
#include <stdbool.h>
#include <sys/types.h>
#include "common/buf.h"
#include "common/options.h"
#include "frontend/cli/log_tail.h"

struct chat_server {
    pid_t pid;  /* 0: none */
    int log_fd; /* what it logs until it is ready; from then on the tail's */
    struct buf line;
    struct log_tail tail;
    char url[128], key[65];
    bool ready, no_chat; /* no_chat: its model has no usable template */
    struct buf errors;   /* its error message */
};
/* Start and wait until it is ready. percent: progress of loading; returns false to cancel.
 * Errors: Q_IO, Q_CANCELLED; Q_UNAVAILABLE with the server's message. Call chat_server_stop also
 * after an error. */
FALLIBLE chat_server_start(struct chat_server *s, const struct options *o,
                           bool (*progress)(unsigned percent), struct q_err *e);
/* Has it ended by itself? Waits a moment for it, after an answer that failed. Once true: why, and
 * the last lines of its log. The server is stopped then. */
bool chat_server_ended(struct chat_server *s, struct buf *why);
void chat_server_stop(struct chat_server *s);

#endif
