/* SPDX-License-Identifier: Apache-2.0 */
/* The certificate of a server, and when its files are read again. Files that are replaced one after
 * the other do not match for a moment: then the old certificate stays until the next change. */
#include "common/log.h"
#include "frontend/http/http_internal.h"

#define REFRESH_MS 2000 /* between two looks at the files */

static void on_tls_file(uv_fs_poll_t *poll, int status, const uv_stat_t *before,
                        const uv_stat_t *now)
{
    struct http_server *s = poll->data;
    struct q_err e = Q_ERR_INIT;
    (void)before, (void)now;
    if (status == 0 && http_server_reload_tls(s, &e) != Q_OK)
        log_warning("a file of TLS has changed, but the certificate stays as it was: %s",
                    e.message);
}

static void watch_files(struct http_server *s)
{
    const char *paths[TLS_FILES] = {s->set.tls.cert, s->set.tls.key, s->set.tls.ca};
    for (size_t i = 0; i < TLS_FILES; i++) {
        if (!paths[i] || !*paths[i])
            continue;
        s->tls_files[i].data = s;
        uv_fs_poll_init(s->loop, &s->tls_files[i]);
        uv_fs_poll_start(&s->tls_files[i], on_tls_file, paths[i], REFRESH_MS);
        uv_unref((uv_handle_t *)&s->tls_files[i]);
    }
}

FALLIBLE server_tls_new(const struct http_server *s, SSL_CTX **tls, struct tls_relay **relay,
                        struct q_err *e)
{
    bool wanted;
    enum q_code rc = tls_files_check(&s->set.tls, &wanted, e);
    if (rc || !wanted || (rc = tls_context_new(tls, &s->set.tls, e)))
        return rc;
    rc = tls_relay_new(relay, s->set.connections_max, s->set.write_timeout_ms, e);
    if (rc)
        SSL_CTX_free(*tls);
    return rc;
}

void server_tls_use(struct http_server *s, SSL_CTX *tls, struct tls_relay *relay)
{
    s->guard.tls = tls;
    s->guard.relay = relay;
    if (relay && s->set.tls_refresh)
        watch_files(s);
}

bool http_server_is_sending(struct http_server *s)
{
    return s->guard.relay && !tls_relay_finished(s->guard.relay);
}

FALLIBLE http_server_reload_tls(struct http_server *s, struct q_err *e)
{
    SSL_CTX *fresh;
    if (!s->guard.relay)
        return Q_OK;
    enum q_code rc = tls_context_new(&fresh, &s->set.tls, e);
    if (rc)
        return rc;
    SSL_CTX_free(s->guard.tls); /* connections hold it as long as they need it */
    s->guard.tls = fresh;
    log_info("read the certificate %s", s->set.tls.cert);
    return Q_OK;
}
