/* SPDX-License-Identifier: Apache-2.0 */
/* socket - one end of the wire: an engine listens (ROUTER), a frontend connects (DEALER).
 *
 * Whole frames are sent and received without waiting. The owner's event loop watches socket_fd for
 * reading; it is readable whenever socket_recv has a frame (ZeroMQ's edge-triggered fd is wrapped
 * in an epoll fd), so the owner may read any number of frames and return to its loop. A broken
 * connection is re-established automatically and silently: for the engine the peer is then a new
 * one, which sends hello again (a frontend detects it by heartbeats; proto/README.md).
 *
 * tcp:// requires CURVE keys (curve.h) unless insecure_tcp is set; the engine then accepts one key
 * only. ipc:// uses no keys: its file has mode 0600, so the peer is the same user. All limits are
 * below. Threads: one owner, the same for all listening sockets of a process. */
#ifndef QUIRE_PROTO_SOCKET_H
#define QUIRE_PROTO_SOCKET_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/socket_watch.h"

#define SOCKET_PEER_MAX \
    32u /* bytes of a peer's name; ZeroMQ uses 5, peers with longer names are ignored */
#define SOCKET_HWM_LISTEN \
    4096 /* frames queued per peer, each way: seconds of output for one stalled frontend */
#define SOCKET_HWM_CONNECT  1024  /* frames queued, each way; then the frontend answers 503 */
#define SOCKET_LINGER_MS    500   /* maximum time for sending the last frames when closing */
#define SOCKET_HEARTBEAT_MS 5000  /* ZMTP ping; a connection silent for three of them is closed */
#define SOCKET_HANDSHAKE_MS 10000 /* time limit for the handshake of a connection */

struct socket;
struct socket_config {
    const char *address;  /* address.h */
    const char *keys_dir; /* curve.h; NULL or "" = none; not used by ipc:// */
    bool insecure_tcp;    /* tcp:// without keys is intended */
};
struct socket_peer { /* sender of a frame to a listening socket; compare with socket_peer_equal */
    uint8_t n;
    uint8_t name[SOCKET_PEER_MAX];
};

/* Errors: Q_INVALID (the address), Q_FORBIDDEN (tcp:// without keys), Q_MISMATCH (another process
 * listens there, or the path is not a socket), Q_IO, and those of curve_load. A stale socket file
 * is replaced. Changes the process's umask temporarily: call it before other threads create files.
 */
FALLIBLE socket_listen(struct socket **out, const struct socket_config *c, struct q_err *e);
/* The engine may start later. Errors: Q_INVALID, Q_FORBIDDEN, Q_IO, those of curve_load. */
FALLIBLE socket_connect(struct socket **out, const struct socket_config *c, struct q_err *e);
/* A connecting socket: try again. libzmq gives up a connection that the other end refused. */
void socket_reconnect(struct socket *s);
void socket_free(struct socket *s); /* closes; waits at most SOCKET_LINGER_MS, at process exit */

int socket_fd(const struct socket *s);              /* watch for reading, level-triggered */
const char *socket_address(const struct socket *s); /* listening address, with the chosen port */

/* The next frame, borrowed until the next socket_recv or socket_free; false when none is there.
 * `peer` is filled by listening sockets (may be NULL for connecting ones). Invalid frames (several
 * parts, a long peer name) are skipped and counted. */
bool socket_recv(struct socket *s, struct socket_peer *peer, const void **frame, size_t *n);
/* The frame of the last socket_recv stays where it is until socket_frame_free, which any thread may
 * call. NULL: no memory. */
struct socket_frame;
struct socket_frame *socket_keep(struct socket *s);
void socket_frame_free(struct socket_frame *f); /* NULL: nothing */
/* Queue one frame; copied. `peer` is NULL on a connecting socket.
 * Errors: Q_UNAVAILABLE (listening: the peer disconnected; connecting: not connected, or
 * SOCKET_HWM_CONNECT frames wait), Q_NO_SPACE (listening: SOCKET_HWM_LISTEN frames wait for a
 * stalled peer), Q_TOO_LARGE, Q_IO. */
FALLIBLE socket_send(struct socket *s, const struct socket_peer *peer, const void *frame, size_t n,
                     struct q_err *e);
/* The sender of the last frame has sent hello: a tcp:// connection that sends more than
 * WATCH_FIRST_BYTES before, or nothing for WATCH_FIRST_MS, is closed. */
void socket_admit(struct socket *s);
/* Connections that failed since the last call (socket_watch.h); false: none. */
bool socket_failure(struct socket *s, struct watch_failure *out);
bool socket_peer_equal(const struct socket_peer *a, const struct socket_peer *b);
uint64_t socket_n_bad(const struct socket *s); /* frames skipped */
uint64_t socket_n_refused(void);               /* connections with a wrong key, whole process */

#endif
