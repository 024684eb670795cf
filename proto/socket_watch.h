/* SPDX-License-Identifier: Apache-2.0 */
/* socket_watch - what ZeroMQ does not tell of a socket's connections: handshakes that fail, and
 * bytes that arrive without becoming a message.
 *
 * A message of several parts is handed over when its last part has come. Until then its parts are
 * in ZeroMQ's memory, any number of them: ZMQ_MAXMSGSIZE is of one part, and high-water marks count
 * whole messages. So the kernel is asked what each tcp:// connection has received (TCP_INFO), and
 * one that receives more than its limit without a message is shut down, which frees the parts. A
 * connection is admitted when it has sent a hello; before, its limit is low, and its time is
 * limited, too. A Unix socket has no such figure; its other end is the same user.
 * Threads: the socket's owner. Design: proto/README.md. */
#ifndef QUIRE_PROTO_SOCKET_WATCH_H
#define QUIRE_PROTO_SOCKET_WATCH_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define WATCH_FIRST_BYTES ((uint64_t)64 << 10) /* of a connection that is not admitted */
#define WATCH_FIRST_MS    10000                /* and how long it may stay so */
#define WATCH_EVERY_MS    50

struct socket_watch;
struct watch_config {
    void *socket;           /* of libzmq */
    bool listens, has_keys; /* CURVE */
    bool counts;            /* listens on tcp:// */
    uint64_t bytes_max;     /* of an admitted connection without a message */
};
/* Before the socket is bound or connected. Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE socket_watch_new(struct socket_watch **out, const struct watch_config *c, struct q_err *e);
void socket_watch_free(struct socket_watch *w); /* before the socket is closed; NULL: nothing */
/* Readable if socket_watch_run has something to do; [2], -1: there is none. */
void socket_watch_fds(const struct socket_watch *w, int fds[2]);
/* Take events, look at connections. Call it when no message waits at the socket. */
void socket_watch_run(struct socket_watch *w);
/* A message has come over the connection of this descriptor (ZMQ_SRCFD); it is admitted. */
void socket_watch_heard(struct socket_watch *w, int fd);
void socket_watch_admit(struct socket_watch *w, int fd);
/* Why the last connection failed or was shut down since the last call, and how many did; NULL:
 * none. is_of_keys: it is for the operator to mend. */
struct watch_failure {
    const char *why;
    uint64_t n;
    bool is_of_keys;
};
bool socket_watch_failure(struct socket_watch *w, struct watch_failure *out);

#endif
