/* SPDX-License-Identifier: Apache-2.0 */
/* tls - the server's certificate, private key and rules for clients, from PEM files.
 *
 * TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN. A context is not changed once it is made: files are
 * read again into another one, and connections keep the one that they began with.
 * Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_TLS_H
#define QUIRE_FRONTEND_HTTP_TLS_H
#include <openssl/ssl.h>
#include <stdbool.h>
#include "common/err.h"

/* The values of --ssl-cert-reqs, Python's ssl.CERT_*. */
enum tls_client_cert {
    TLS_CLIENT_CERT_NONE,
    TLS_CLIENT_CERT_OPTIONAL, /* one that is sent must be valid */
    TLS_CLIENT_CERT_REQUIRED
};

struct tls_files {    /* paths; NULL or "": none */
    const char *cert; /* chain, the server's certificate first; none: no TLS */
    const char *key;  /* none: it is in the file of the certificate */
    const char *ca;   /* certificates that those of clients must be signed by */
    enum tls_client_cert client_cert;
    const char *ciphers; /* of TLS 1.2, OpenSSL's list; none: OpenSSL's default */
};
/* True if there is to be TLS. Errors: Q_INVALID (a path without the one that it needs). */
FALLIBLE tls_files_check(const struct tls_files *f, bool *wanted, struct q_err *e);
/* Warns about a certificate that is not valid now. Errors: Q_IO (a file cannot be read), Q_INVALID
 * (it is no PEM, the key is encrypted or that of another certificate, no cipher is known). Release
 * with SSL_CTX_free. */
FALLIBLE tls_context_new(SSL_CTX **out, const struct tls_files *f, struct q_err *e);

#endif
