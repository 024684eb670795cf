/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/tls_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define STOP_LOOK_MS 100

/* OpenSSL writes to the socket without MSG_NOSIGNAL: a server that has gone would end the program
 * with SIGPIPE. The signal is held while OpenSSL runs, and dropped afterwards. */
static sigset_t hold_sigpipe(void)
{
    sigset_t pipe_only, before;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    return before;
}

static void drop_sigpipe(const sigset_t *before)
{
    sigset_t pipe_only;
    const struct timespec now = {.tv_sec = 0};
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    if (!sigismember(before, SIGPIPE))
        sigtimedwait(&pipe_only, NULL, &now);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static const char *reason(void)
{
    const unsigned long code = ERR_peek_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    return text ? text : "the connection was closed";
}

/* After a call of OpenSSL that returned `result`: wait until it can go on. Errors: Q_IO (it
 * cannot), Q_CANCELLED. */
static enum q_code wait_for_socket(struct tls_client *t, int result, const char *doing,
                                   struct q_err *e)
{
    const int why = SSL_get_error(t->ssl, result);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        const long invalid = SSL_get_verify_result(t->ssl);
        return invalid == X509_V_OK
                   ? q_fail(e, Q_IO, "%s: %s", doing, reason())
                   : q_fail(e, Q_IO,
                            "the server's certificate is not valid: %s (a file of certificates to "
                            "trust can be named in the environment variable SSL_CERT_FILE)",
                            X509_verify_cert_error_string(invalid));
    }
    struct pollfd p = {.fd = t->fd, .events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
    while (poll(&p, 1, t->stop ? STOP_LOOK_MS : -1) <= 0)
        if (t->stop && *t->stop)
            break;
    return t->stop && *t->stop ? q_fail(e, Q_CANCELLED, "stopped") : Q_OK;
}

/* The certificate must name the host. */
static bool expect_host(SSL *ssl, const char *host)
{
    struct in6_addr any; /* large enough for both */
    if (inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static bool make(struct tls_client *t, const char *host)
{
    t->context = SSL_CTX_new(TLS_client_method());
    if (!t->context || SSL_CTX_set_default_verify_paths(t->context) != 1)
        return false;
    SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION);
    SSL_CTX_set_options(t->context, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_verify(t->context, SSL_VERIFY_PEER, NULL);
    t->ssl = SSL_new(t->context);
    return t->ssl && SSL_set_fd(t->ssl, t->fd) == 1 && expect_host(t->ssl, host);
}

FALLIBLE tls_client_open(struct tls_client *t, int fd, const char *host,
                         const volatile sig_atomic_t *stop, struct q_err *e)
{
    enum q_code rc = Q_OK;
    *t = (struct tls_client){.fd = fd, .stop = stop};
    ERR_clear_error();
    if (!make(t, host) || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        tls_client_release(t);
        return q_fail(e, Q_IO, "tls: cannot begin: %s", reason());
    }
    const sigset_t before = hold_sigpipe();
    for (int n; rc == Q_OK && (n = SSL_connect(t->ssl)) != 1; ERR_clear_error())
        rc = wait_for_socket(t, n, "the TLS handshake failed", e);
    drop_sigpipe(&before);
    if (rc)
        tls_client_release(t);
    return rc;
}

FALLIBLE tls_client_read(struct tls_client *t, void *out, size_t size, size_t *n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    const sigset_t before = hold_sigpipe();
    ERR_clear_error();
    for (int got; rc == Q_OK && (got = SSL_read_ex(t->ssl, out, size, n)) != 1; ERR_clear_error())
        rc = wait_for_socket(t, got, "the server closed the connection", e);
    drop_sigpipe(&before);
    return rc;
}

FALLIBLE tls_client_write(struct tls_client *t, const void *bytes, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t sent;
    const sigset_t before = hold_sigpipe();
    ERR_clear_error();
    for (int put; rc == Q_OK && n && (put = SSL_write_ex(t->ssl, bytes, n, &sent)) != 1;
         ERR_clear_error())
        rc = wait_for_socket(t, put, "sending the request", e);
    drop_sigpipe(&before);
    return rc;
}

void tls_client_release(struct tls_client *t)
{
    const sigset_t before = hold_sigpipe();
    if (t->ssl && SSL_is_init_finished(t->ssl))
        SSL_shutdown(t->ssl);
    drop_sigpipe(&before);
    SSL_free(t->ssl);
    SSL_CTX_free(t->context);
    ERR_clear_error();
    t->ssl = NULL;
    t->context = NULL;
}
