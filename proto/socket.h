/* SPDX-License-Identifier: Apache-2.0 */
/* socket - one end of the wire: an engine listens (ROUTER), a frontend connects (DEALER).
 *
 * Whole frames go in and out, never waiting. The owner's event loop watches socket_fd for reading;
 * it is readable whenever socket_recv would give something (ZeroMQ's own edge-triggered fd is
 * hidden behind an epoll fd), so the owner takes what it likes and goes back to its loop. A
 * connection that breaks is made again behind the scenes, without a sign: the peer is then a new
 * one to the engine, and says hello again (heartbeats tell a frontend; proto/README.md).
 *
 * tcp:// needs CURVE keys (curve.h) unless insecure_tcp says otherwise; the engine then lets in one
 * key only. ipc:// uses no keys: its file has mode 0600, so the peer is the same user. All limits
 * are below. Threads: one owner, the same for all listening sockets of a process. */
#ifndef QUIRE_PROTO_SOCKET_H
#define QUIRE_PROTO_SOCKET_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define SOCKET_PEER_MAX \
    32u /* bytes of a peer's name; ZeroMQ gives 5, longer ones are not listened to */
#define SOCKET_HWM_LISTEN \
    4096 /* frames queued per peer, each way: seconds of output for one stalled frontend */
#define SOCKET_HWM_CONNECT  1024 /* frames queued, each way; then the frontend answers 503 */
#define SOCKET_LINGER_MS    500  /* how long closing may wait for the last frames to leave */
#define SOCKET_HEARTBEAT_MS 5000 /* ZMTP ping; a connection silent for three of them is closed */
#define SOCKET_HANDSHAKE_MS \
    10000 /* a connection must be greeted and authenticated in this time \
                                   */

struct socket;
struct socket_config {
    const char *address;  /* address.h */
    const char *keys_dir; /* curve.h; NULL or "" = none; not used by ipc:// */
    bool insecure_tcp;    /* plain tcp:// is meant */
};
struct socket_peer { /* who sent a frame to a listening socket; compare with socket_peer_equal */
    uint8_t n;
    uint8_t name[SOCKET_PEER_MAX];
};

/* Errors: Q_INVALID (the address), Q_FORBIDDEN (tcp:// without keys), Q_MISMATCH (another process
 * listens there, or the path is not a socket), Q_IO, and those of curve_load. A socket file left
 * behind by a dead process is replaced. Changes the process's umask for the moment: call it before
 * other threads make files. */
FALLIBLE socket_listen(struct socket **out, const struct socket_config *c, struct q_err *e);
/* The engine need not be there yet. Errors: Q_INVALID, Q_FORBIDDEN, Q_IO, those of curve_load. */
FALLIBLE socket_connect(struct socket **out, const struct socket_config *c, struct q_err *e);
void socket_free(struct socket *s); /* closes; waits at most SOCKET_LINGER_MS, at process exit */

int socket_fd(const struct socket *s);              /* watch for reading, level-triggered */
const char *socket_address(const struct socket *s); /* where it listens, a chosen port filled in */

/* The next frame, borrowed until the next socket_recv or socket_free; false when none is there.
 * `peer` is filled by listening sockets (may be NULL for connecting ones). Frames that are no
 * frames (several parts, a long peer name) are skipped and counted. */
bool socket_recv(struct socket *s, struct socket_peer *peer, const void **frame, size_t *n);
/* Queue one frame; copied. `peer` is NULL on a connecting socket.
 * Errors: Q_UNAVAILABLE (listening: that peer is gone; connecting: not connected, or
 * SOCKET_HWM_CONNECT frames wait), Q_NO_SPACE (listening: SOCKET_HWM_LISTEN frames wait for that
 * peer: it has stalled), Q_TOO_LARGE, Q_IO. */
FALLIBLE socket_send(struct socket *s, const struct socket_peer *peer, const void *frame, size_t n,
                     struct q_err *e);
bool socket_peer_equal(const struct socket_peer *a, const struct socket_peer *b);
uint64_t socket_n_bad(const struct socket *s); /* frames skipped */
uint64_t socket_n_refused(void);               /* connections with a wrong key, whole process */

#endif
