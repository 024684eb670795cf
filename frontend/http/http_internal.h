/* SPDX-License-Identifier: Apache-2.0 */
/* http_internal - declarations shared by the server's files only.
 * Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_HTTP_HTTP_INTERNAL_H
#define QUIRE_FRONTEND_HTTP_HTTP_INTERNAL_H
#include <h2o.h>
#include "common/buf.h"
#include "common/net.h"
#include "frontend/http/exchange.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/body_bytes.h"
#include "frontend/http/connections.h"
#include "frontend/http/guard.h"
#include "frontend/http/local.h"
#include "frontend/http/server.h"
#include "frontend/http/tls_relay.h"

/* What an exchange is counted as, from its handler's call until its answer is made. */
enum http_slot {
    SLOT_NONE,    /* refused, or of a public route: it is answered at once */
    SLOT_REQUEST, /* open_max */
    SLOT_METRICS  /* HTTP_METRICS_MAX: monitoring works while the server is full */
};

struct http_exchange {
    h2o_generator_t generator; /* first: h2o returns this pointer */
    h2o_req_t *req;
    struct http_server *server;
    struct http_exchange *next, *prev; /* the server's open exchanges */
    void (*gone)(void *ctx);
    void *ctx;
    struct buf pending;             /* bytes not passed to h2o yet */
    struct buf sending;             /* bytes h2o holds until `proceed` */
    size_t n_given;                 /* bytes of `sending` that h2o has, of a whole response */
    int64_t last_ms;                /* time of the last byte sent, or taken by the client */
    int n_queued;                   /* bytes in the kernel's queue, as of the last progress */
    struct http_text body;          /* as received, or decompressed */
    struct buf unpacked;            /* buffer of a decompressed body */
    const char *warning;            /* for X-Quire-Warning; NULL: none */
    size_t n_request;               /* size of the request on its connection (HTTP/1) */
    const struct http_local *local; /* not NULL: there is no req, and no server (local.h) */
    enum http_slot slot;
    const struct api_key *key; /* of the request; NULL: none. Borrowed from the server, or */
    bool key_removed;          /* in the request's pool: --api-key-file has it no more */
    size_t n_held;             /* of `unpacked`: body_bytes.h */
    size_t n_unread;           /* counted in server->n_unread */
    bool watched;              /* its socket is in the hang-up epoll */
    bool stream;               /* the response is an event stream; pings may start it */
    bool started;              /* the head of the response is sent or being sent */
    bool busy;                 /* h2o holds `sending` */
    bool ending;               /* no more writes follow */
    bool broken;               /* to be closed at the next opportunity */
    bool over;                 /* the last bytes were passed to h2o */
    char id[HTTP_ID_MAX + 1];
};

#define TLS_FILES      3
#define LISTEN_BACKLOG 1024 /* connections in the queue of a listening socket */

struct http_server {
    uv_loop_t *loop;
    h2o_globalconf_t config;
    h2o_context_t ctx;
    h2o_accept_ctx_t accept_ctx;
    struct http_config set;
    struct api_keys keys;
    struct guard guard;
    struct connections connections;
    struct body_bytes bytes;
    uint32_t *n_key_open;               /* [keys.n] open requests of each key */
    uv_tcp_t listeners[NET_LISTEN_MAX]; /* [n_listener] */
    bool has_next[NET_LISTEN_MAX];      /* libuv has its next connection, which waits */
    uint32_t n_listener;
    bool is_port_own;     /* the listeners are not inherited */
    struct net_path path; /* of a Unix socket that is not inherited */
    uint32_t n_accepted;  /* in this iteration of the loop */
    uv_prepare_t iteration;
    uv_idle_t accepter; /* active while one has_next */
    uv_timer_t pinger;
    uv_poll_t hangup; /* on hangup_fd */
    int hangup_fd;    /* epoll of sockets with an open exchange */
    struct http_exchange *open;
    uint32_t n_open;     /* of SLOT_REQUEST */
    uint32_t n_metrics;  /* of SLOT_METRICS */
    size_t n_unread;     /* bytes of whole answers that clients have not read yet */
    uint32_t n_exchange; /* all */
    uint16_t port;
    void (*drained)(void *ctx);
    void *drained_ctx;
    uv_timer_t drainer;
    uv_fs_poll_t tls_files[TLS_FILES];       /* with tls_refresh */
    bool relay_finishes;                     /* the relay was told to finish: drain.c */
    int64_t listen_until_ms, first_until_ms; /* while draining: drain.c */
    double pace_ms;      /* moving mean of the time between two finished requests */
    int64_t finished_ms; /* when the last one finished */
};

/* request.c: handle requests to a path; the CORS headers of a response. */
void request_handle(struct http_server *s, h2o_pathconf_t *path);
void request_share(const struct http_server *s, h2o_req_t *req);
void filter_add(struct http_server *s, h2o_pathconf_t *path); /* filter.c */
/* The exchange of a new request; in the request's pool. */
struct http_exchange *exchange_new(struct http_server *s, h2o_req_t *req);
void exchange_id(struct http_text given, char id[HTTP_ID_MAX + 1]);
/* Is there a slot of this kind for a request with this key (NULL: none)? */
bool server_has_slot(const struct http_server *s, enum http_slot slot, const struct api_key *key);
void server_take_slot(struct http_exchange *x, enum http_slot slot);
void server_give_slot(struct http_exchange *x);
/* The known key of the request; NULL: none. Borrowed from the server. */
const struct api_key *exchange_key(const struct http_exchange *x);
const struct api_key *request_key(const struct http_server *s, const h2o_req_t *req);
void exchange_choose_id(struct http_exchange *x);
void exchange_send_id(h2o_req_t *req);              /* for a response without an exchange */
const char *exchange_reason(int status);            /* for the status line */
void exchange_notify_gone(struct http_exchange *x); /* once: the second time does nothing */
/* local.c: the whole answer; *body is released. */
void local_reply(struct http_exchange *x, int status, struct buf *body, uint32_t retry_after_s);
void local_warn(const struct http_exchange *x, const char *text);
/* From time to time: an idle stream gets a ping; a client that does not read loses its connection.
 */
void exchange_tick(struct http_exchange *x, int64_t now_ms);
/* The client has sent all it will send: it has gone, or waits for the answer. */
void exchange_half_closed(struct http_exchange *x);
void exchange_hung_up(struct http_exchange *x); /* the connection is lost */
/* Seconds for Retry-After, estimated from the rate at which requests finish. */
uint32_t server_retry_after(const struct http_server *s);
/* server.c: accept the connections that wait for the next iteration. */
void server_accept_next(struct http_server *s);
/* server_tls.c: make the certificate and the relay, NULL if there is to be no TLS (errors:
 * http_server_new's); give them to the guard. */
FALLIBLE server_tls_new(const struct http_server *s, SSL_CTX **tls, struct tls_relay **relay,
                        struct q_err *e);
void server_tls_use(struct http_server *s, SSL_CTX *tls, struct tls_relay *relay);
/* drain.c: nothing is open any more? */
void server_check_drained(struct http_server *s);
void server_exchange_over(struct http_server *s, struct http_exchange *x);

#endif
