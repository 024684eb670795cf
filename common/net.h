/* SPDX-License-Identifier: Apache-2.0 */
/* net - sockets that listen on all addresses of a name or at a path; checks and errors of
 * addresses.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_NET_H
#define QUIRE_COMMON_NET_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include "common/err.h"

#define NET_LISTEN_MAX 8 /* addresses of one name */

struct net_sockets { /* bound, listening, non-blocking; all on one port */
    int fd[NET_LISTEN_MAX];
    uint32_t n;
    uint16_t port;
};
/* Listen on every address of the name: `localhost` may have one of IPv4 and one of IPv6. Addresses
 * that this machine does not have are skipped if another one remains. port 0: a free one, the same
 * for all. Returns 0, or the error for net_error_text; nothing is open then. */
int net_open(struct net_sockets *out, const char *host, uint16_t port);
/* The text of an error of net_open: of an errno, or, below 0, of getaddrinfo. */
const char *net_error_text(int error);
/* net_open for HTTP. Errors: Q_IO (the address, and a remedy by --host and --port). */
FALLIBLE net_listen(struct net_sockets *out, const char *host, uint16_t port, struct q_err *e);
/* The same on a port that other processes of this user also open in this way (SO_REUSEPORT). */
FALLIBLE net_listen_shared(struct net_sockets *out, const char *host, uint16_t port,
                           struct q_err *e);
void net_sockets_close(struct net_sockets *s);

struct net_path { /* the file of a Unix socket that this process listens on; text "": none */
    char text[sizeof((struct sockaddr_un *)NULL)->sun_path];
    dev_t device;
    ino_t inode;
};
/* Listen on a Unix socket: one socket, port 0. A socket that is left from a process that has ended
 * is replaced. The umask sets the permissions of the file. Errors: Q_IO (the path is too long, in
 * use, no socket; errno text). */
FALLIBLE net_listen_path(struct net_sockets *out, struct net_path *at, const char *path,
                         struct q_err *e);
/* Remove the file, unless another one is there by now. */
void net_path_remove(struct net_path *at);
/* From now on the kernel drops the packets that begin a connection to this listening socket, in all
 * processes that have it; clients repeat them after a second. Handshakes that have begun go on, so
 * that all connections can be accepted before the socket is closed. Does nothing to a Unix socket,
 * and where the kernel has no filters of sockets. */
void net_drop_new(int fd);

/* Descriptors that each process of a server needs, with its first connections: about 25 are open
 * when it is ready, and a few more while it starts, or starts a worker. */
#define NET_DESCRIPTORS_LEAST 64
/* Raise the soft limit of descriptors, usually 1024, to n or to the hard limit: each connection
 * needs one. Errors: Q_IO (the limit stays below NET_DESCRIPTORS_LEAST). */
FALLIBLE net_raise_descriptors(uint32_t n, struct q_err *e);

/* True if other machines may reach a socket bound to this address, judged by the address alone. */
bool net_is_open(const struct sockaddr *a);
/* The same for any address of a --host; true also if it cannot be resolved. */
bool net_host_is_open(const char *host);
/* For a server without API keys: log a warning if other machines may reach it. */
void net_warn_open(const char *host, unsigned port);
/* A remedy for an errno of bind(2) or listen(2), starting with "; "; "" if there is none. */
const char *net_hint(int error);

#endif
