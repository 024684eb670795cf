/* SPDX-License-Identifier: Apache-2.0 */
/* tls_relay - TLS between clients and the server.
 *
 *     client == TLS == relay -- plain bytes, a pair of Unix sockets -- guard, h2o
 *
 * The server's end of the pair takes the place of the client's socket before the server reads from
 * it. So whatever the server does to a connection (checks of heads, refusals, lingering, limits,
 * the detection of clients that have gone) it does with and without TLS alike. The relay is a
 * thread: handshakes, up to a millisecond of arithmetic each, do not delay the loop.
 * Threads: the functions are the loop's. */
#ifndef QUIRE_FRONTEND_HTTP_TLS_RELAY_H
#define QUIRE_FRONTEND_HTTP_TLS_RELAY_H
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define TLS_CLOSING_MAX      512 /* connections that the server has closed, in the relay */
#define TLS_DESCRIPTORS      3   /* of a connection, the server's included */
#define TLS_DESCRIPTORS_MORE (2 * TLS_CLOSING_MAX)

struct tls_relay;
/* connections_max: connections that the server may have open. write_timeout_ms: time for a client
 * to read a part of what is left for it when the server has closed its connection. Valid as long as
 * the process. Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE tls_relay_new(struct tls_relay **out, uint32_t connections_max, int64_t write_timeout_ms,
                       struct q_err *e);
/* fd, the socket of a client that has sent nothing yet to this process's knowledge, becomes the
 * server's end of a pair; the relay has the client. Errors: Q_NO_MEMORY, Q_IO (descriptors),
 * Q_NO_SPACE; then fd is to be closed. */
FALLIBLE tls_relay_insert(struct tls_relay *r, SSL_CTX *context, int fd, struct q_err *e);
/* Send what the server has written, within a few seconds, then close all connections. */
void tls_relay_finish(struct tls_relay *r);
bool tls_relay_finished(struct tls_relay *r);

#endif
