/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <string.h>
#include <unistd.h>
#include "common/log.h"

static bool is_set(const char *text)
{
    return text && *text;
}

/* The reason of OpenSSL's last failure. */
static const char *reason(void)
{
    const unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    return text ? text : "OpenSSL gives no reason";
}

FALLIBLE tls_files_check(const struct tls_files *f, bool *wanted, struct q_err *e)
{
    *wanted = is_set(f->cert);
    const char *alone = *wanted              ? NULL
                        : is_set(f->key)     ? "--ssl-keyfile"
                        : is_set(f->ca)      ? "--ssl-ca-certs"
                        : is_set(f->ciphers) ? "--ssl-ciphers"
                        : f->client_cert     ? "--ssl-cert-reqs"
                                             : NULL;
    if (alone)
        return q_fail(e, Q_INVALID, "%s needs --ssl-certfile, the server's certificate", alone);
    if (f->client_cert && !is_set(f->ca))
        return q_fail(e, Q_INVALID,
                      "--ssl-cert-reqs %d needs --ssl-ca-certs, which says which certificates of "
                      "clients are valid",
                      (int)f->client_cert);
    return Q_OK;
}

static enum q_code check_readable(const char *option, const char *path, struct q_err *e)
{
    if (access(path, R_OK) != 0)
        return q_fail(e, Q_IO, "%s %s: %s", option, path, strerror(errno));
    return Q_OK;
}

/* OpenSSL asks for a password only of an encrypted key. */
static int note_encrypted(char *password, int size, int for_writing, void *encrypted)
{
    (void)password, (void)size, (void)for_writing;
    *(bool *)encrypted = true;
    return 0;
}

static enum q_code read_key(SSL_CTX *c, const struct tls_files *f, struct q_err *e)
{
    const char *option = is_set(f->key) ? "--ssl-keyfile" : "--ssl-certfile";
    const char *path = is_set(f->key) ? f->key : f->cert;
    bool encrypted = false;
    enum q_code rc = check_readable(option, path, e);
    if (rc)
        return rc;
    SSL_CTX_set_default_passwd_cb(c, note_encrypted);
    SSL_CTX_set_default_passwd_cb_userdata(c, &encrypted);
    const bool is_read = SSL_CTX_use_PrivateKey_file(c, path, SSL_FILETYPE_PEM) == 1;
    SSL_CTX_set_default_passwd_cb_userdata(c, NULL);
    SSL_CTX_set_default_passwd_cb(c, NULL);
    if (encrypted)
        return q_fail(e, Q_INVALID,
                      "%s %s: the private key is encrypted; decrypt it with `openssl pkey -in FILE "
                      "-out FILE`",
                      option, path);
    /* A key of another type than the certificate's is taken as the beginning of a second pair. */
    const bool is_pair = is_read && SSL_CTX_check_private_key(c) == 1;
    if (is_pair)
        return Q_OK;
    if (is_read || ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH)
        return q_fail(e, Q_INVALID, "%s %s: the private key is not that of --ssl-certfile %s",
                      option, path, f->cert);
    return q_fail(e, Q_INVALID, "%s %s: expected a private key in PEM: %s", option, path, reason());
}

static void warn_of_dates(SSL_CTX *c, const struct tls_files *f)
{
    const X509 *cert = SSL_CTX_get0_certificate(c);
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) < 0)
        log_warning("--ssl-certfile %s: the certificate has expired; clients will refuse it",
                    f->cert);
    else if (X509_cmp_current_time(X509_get0_notBefore(cert)) > 0)
        log_warning("--ssl-certfile %s: the certificate is not valid yet; clients will refuse it",
                    f->cert);
}

static enum q_code read_cert(SSL_CTX *c, const struct tls_files *f, struct q_err *e)
{
    enum q_code rc = check_readable("--ssl-certfile", f->cert, e);
    if (rc)
        return rc;
    if (SSL_CTX_use_certificate_chain_file(c, f->cert) != 1)
        return q_fail(e, Q_INVALID, "--ssl-certfile %s: expected certificates in PEM: %s", f->cert,
                      reason());
    if ((rc = read_key(c, f, e)))
        return rc;
    warn_of_dates(c, f);
    return Q_OK;
}

static enum q_code read_ca(SSL_CTX *c, const struct tls_files *f, struct q_err *e)
{
    if (!is_set(f->ca))
        return Q_OK;
    enum q_code rc = check_readable("--ssl-ca-certs", f->ca, e);
    if (rc)
        return rc;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(f->ca);
    if (!names || SSL_CTX_load_verify_file(c, f->ca) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return q_fail(e, Q_INVALID, "--ssl-ca-certs %s: expected certificates in PEM: %s", f->ca,
                      reason());
    }
    SSL_CTX_set_client_CA_list(c, names);
    return Q_OK;
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out,
                           const unsigned char *in, unsigned n_in, void *arg)
{
    static const unsigned char ours[] = "\2h2\10http/1.1";
    (void)ssl, (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, n_out, ours, sizeof ours - 1, in, n_in) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static enum q_code configure(SSL_CTX *c, const struct tls_files *f, struct q_err *e)
{
    static const int verify[] = {
        [TLS_CLIENT_CERT_NONE] = SSL_VERIFY_NONE,
        [TLS_CLIENT_CERT_OPTIONAL] = SSL_VERIFY_PEER,
        [TLS_CLIENT_CERT_REQUIRED] = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
    };
    static const unsigned char sessions[] = "quire";
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    /* HTTP says by itself where a message ends, so an end of the bytes is an end. */
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF |
                               SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    /* Tickets resume sessions; a cache would be one more table that clients fill. */
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_session_id_context(c, sessions, sizeof sessions - 1);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    SSL_CTX_set_verify(c, verify[f->client_cert], NULL);
    if (is_set(f->ciphers) && SSL_CTX_set_cipher_list(c, f->ciphers) != 1)
        return q_fail(e, Q_INVALID, "--ssl-ciphers: OpenSSL knows no cipher of \"%.200s\"",
                      f->ciphers);
    return Q_OK;
}

FALLIBLE tls_context_new(SSL_CTX **out, const struct tls_files *f, struct q_err *e)
{
    enum q_code rc;
    ERR_clear_error();
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    if (!c)
        return q_fail(e, Q_INTERNAL, "tls: cannot make a context: %s", reason());
    if ((rc = configure(c, f, e)) || (rc = read_cert(c, f, e)) || (rc = read_ca(c, f, e))) {
        SSL_CTX_free(c);
        ERR_clear_error();
        return rc;
    }
    *out = c;
    return Q_OK;
}
