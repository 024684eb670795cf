/* SPDX-License-Identifier: Apache-2.0 */
/* server - HTTP/1.1 and HTTP/2 on one libuv loop, by h2o; with TLS (http/tls.h) or without.
 *
 * The server reads a request completely, finds its row in the routes, checks the API key and the
 * limits, and calls the row's handler with an exchange (http/exchange.h). Its own errors (400, 401,
 * 404, 405, 413, 415, 429) have OpenAI's error body too. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_HTTP_SERVER_H
#define QUIRE_FRONTEND_HTTP_SERVER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "frontend/http/cors.h"
#include "frontend/http/tls.h"

struct http_server;
struct http_exchange;

enum http_auth {
    HTTP_PUBLIC,  /* no key, and not counted for the limit of open requests */
    HTTP_KEY,     /* an API key, if any is set */
    HTTP_METRICS, /* an API key unless public_metrics */
    HTTP_ADMIN    /* an API key marked admin; without keys a client of this machine */
};

typedef void http_handler(void *app, struct http_exchange *x);

struct http_route {
    const char *method, *path; /* '*' in a path: one byte or more */
    enum http_auth auth;
    http_handler *handle;
};

struct http_config {                 /* what it points to is borrowed as long as the server */
    const struct http_route *routes; /* [n_route] */
    size_t n_route;
    void *app;                   /* first argument of every handler */
    const char *const *api_keys; /* [n_api_key] */
    size_t n_api_key;
    const char *api_key_file; /* file with more keys (api_keys.h); NULL or "" = none */
    bool public_metrics;
    bool enable_steering;           /* HTTP_ADMIN is as HTTP_KEY */
    struct cors_list allowed_hosts; /* names in Host besides addresses and localhost; "*": all;
                                     * empty: all, but for HTTP_ADMIN */
    struct cors cors;               /* allowed origins; empty: none */
    size_t body_max;                /* bytes */
    size_t total_body_max;          /* bytes of all requests in memory */
    uint32_t connections_max, address_connections_max; /* 0: no limit of an address */
    int64_t write_timeout_ms; /* for a client to read a part of its answer */
    uint32_t open_max;        /* requests */
    uint32_t ping_ms;         /* interval of comments in an idle stream */
    struct tls_files tls;     /* no cert: no TLS */
    bool tls_refresh;         /* read these files again when one of them changes */
    bool reuse_port;          /* other processes may listen on the port; not for a Unix socket */
};

/* Does not listen yet. Valid as long as the process. Errors: Q_NO_MEMORY, Q_IO (a file), Q_INVALID
 * (a file's content, or paths that need others). */
FALLIBLE http_server_new(struct http_server **out, uv_loop_t *loop, const struct http_config *c,
                         struct q_err *e);
/* Bind and listen, on every address of the name. port 0 picks a free one. Errors: Q_IO (address,
 * errno text). */
FALLIBLE http_server_listen(struct http_server *s, const char *host, uint16_t port,
                            struct q_err *e);
/* The same on a Unix socket (common/net.h). Its file is removed when a drain begins. */
FALLIBLE http_server_listen_path(struct http_server *s, const char *path, struct q_err *e);
/* Remove that file, if there is one: for a process that ends without a drain. */
void http_server_remove_path(struct http_server *s);
/* Read the keys of api_key_file again. Requests keep the key they came with. On errors, those of
 * http_server_new, the old keys stay. */
FALLIBLE http_server_reload_keys(struct http_server *s, struct q_err *e);
/* Read the files of TLS again, for new connections. On errors, those of tls_context_new, they get
 * the old certificate. Does nothing without TLS. */
FALLIBLE http_server_reload_tls(struct http_server *s, struct q_err *e);
/* Is a thread of the server's running that exit() would disturb? */
bool http_server_is_sending(struct http_server *s);
size_t http_server_n_key(const struct http_server *s);
/* Take over a socket that is bound already (a supervisor's), one of at most NET_LISTEN_MAX; the
 * descriptor belongs to the server from now on. */
FALLIBLE http_server_listen_fd(struct http_server *s, int fd, struct q_err *e);
uint16_t http_server_port(const struct http_server *s);
uint32_t http_server_n_open(const struct http_server *s);
/* Stop accepting; `done` is called once no request is open and no connection is about to send its
 * first one (at once if there are none). */
void http_server_drain(struct http_server *s, void (*done)(void *ctx), void *ctx);

#endif
