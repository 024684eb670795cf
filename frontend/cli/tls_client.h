/* SPDX-License-Identifier: Apache-2.0 */
/* tls_client - TLS of one connection to a server whose certificate must be valid for its name.
 *
 * Trusted are the system's certificates, or those of the file that the environment variable
 * SSL_CERT_FILE names (OpenSSL reads it). Calls wait for the socket, and return Q_CANCELLED soon
 * after *stop is set.
 * Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_TLS_CLIENT_H
#define QUIRE_FRONTEND_CLI_TLS_CLIENT_H
#include <openssl/ssl.h>
#include <signal.h>
#include <stddef.h>
#include "common/err.h"

struct tls_client {
    SSL_CTX *context;
    SSL *ssl; /* NULL: not open */
    int fd;   /* borrowed */
    const volatile sig_atomic_t *stop;
};
/* clang-format off */
#define TLS_CLIENT_INIT {.context = NULL}
/* clang-format on */

/* fd: connected; it becomes non-blocking. host: a name or an address. stop: NULL, or a flag.
 * Errors: Q_IO (the handshake; a certificate that is not valid), Q_CANCELLED. */
FALLIBLE tls_client_open(struct tls_client *t, int fd, const char *host,
                         const volatile sig_atomic_t *stop, struct q_err *e);
/* At least one byte. Errors: Q_IO (also the end of the stream), Q_CANCELLED. */
FALLIBLE tls_client_read(struct tls_client *t, void *out, size_t size, size_t *n, struct q_err *e);
/* All n bytes. Errors: Q_IO, Q_CANCELLED. */
FALLIBLE tls_client_write(struct tls_client *t, const void *bytes, size_t n, struct q_err *e);
void tls_client_release(struct tls_client *t); /* does not close fd */

#endif
