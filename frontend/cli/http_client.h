/* SPDX-License-Identifier: Apache-2.0 */
/* http_client - one HTTP/1.1 request at a time, with a streamed response body. For the terminal
 * verbs; blocking, http:// and https:// (tls_client.h).
 * Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_HTTP_CLIENT_H
#define QUIRE_FRONTEND_CLI_HTTP_CLIENT_H
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

#define HTTP_LINE_MAX 16384 /* bytes of a header line or of the head */

struct http_url {
    bool tls;
    char host[256], port[8], prefix[256]; /* prefix: path before /v1, "" = none */
};
/* http://host[:port][/prefix], or https://. Errors: Q_INVALID. */
FALLIBLE http_url_parse(struct http_url *out, const char *text, struct q_err *e);
static inline const char *http_url_scheme(const struct http_url *url)
{
    return url->tls ? "https" : "http";
}

struct http_call {
    const char *method, *path; /* path without the prefix */
    const char *api_key;       /* NULL or "" = none */
    const char *body;          /* [n_body] JSON; NULL with GET */
    size_t n_body;
    /* Called with pieces of the body; a result other than Q_OK ends the call. */
    enum q_code (*on_body)(void *ctx, const char *data, size_t n, struct q_err *e);
    void *ctx;
    const volatile sig_atomic_t *stop; /* NULL, or a flag that cancels the call when set */
    int status;                        /* output; set before on_body is called */
};
/* Errors: Q_IO (no connection, cut off), Q_CANCELLED (stop), Q_CORRUPT (no HTTP), on_body's. A
 * status of 400 and above is not an error here. */
FALLIBLE http_call(const struct http_url *url, struct http_call *c, struct q_err *e);

#endif
