/* SPDX-License-Identifier: Apache-2.0 */
/* One host, one path "/" and one handler of h2o's; what varies is the table of routes. h2o answers
 * some errors before any handler runs (a body beyond the limit, a broken head): a filter gives
 * those OpenAI's body as well. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/net.h"
#include "frontend/http/inside.h"

#define REQUEST_READ_MS \
    60000                   /* to send head and body; also how long an idle connection is kept \
                             */
#define HTTP2_STREAMS   256 /* of one connection, handled at once */
#define LISTEN_BACKLOG  1024
#define RETRY_AFTER_MAX 60 /* seconds */
#define PING_CHECKS     4  /* per ping interval */

struct handler {
    h2o_handler_t super;
    struct http_server *server;
};

uint32_t server_retry_after(const struct http_server *s)
{
    double seconds = s->pace_ms / 1000;
    return seconds < 1                 ? 1
           : seconds > RETRY_AFTER_MAX ? RETRY_AFTER_MAX
                                       : (uint32_t)(seconds + 0.999);
}

void server_exchange_over(struct http_server *s, struct http_exchange *x)
{
    if (x->watched) {
        h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
        if (sock)
            epoll_ctl(s->hangup_fd, EPOLL_CTL_DEL, h2o_socket_get_fd(sock), NULL);
    }
    if (x->prev)
        x->prev->next = x->next;
    else
        s->open = x->next;
    if (x->next)
        x->next->prev = x->prev;
    s->n_exchange--;
    if (!x->public) {
        int64_t now = clock_ms();
        if (s->finished_ms)
            s->pace_ms = 0.9 * s->pace_ms + 0.1 * (double)(now - s->finished_ms);
        s->finished_ms = now;
        s->n_open--;
    }
    metric_set(METRIC_OPEN_REQUESTS, s->n_open);
    if (s->drained && s->n_exchange == 0) {
        void (*done)(void *ctx) = s->drained;
        s->drained = NULL;
        done(s->drained_ctx);
    }
}

static bool same(h2o_iovec_t v, const char *s)
{
    return v.len == strlen(s) && memcmp(v.base, s, v.len) == 0;
}

static bool path_matches(h2o_iovec_t path, const char *pattern)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] == '*')
        return path.len >= n && memcmp(path.base, pattern, n - 1) == 0;
    return same(path, pattern);
}

/* The route for the request. NULL: *allow is the method that the path has, or NULL when there is no
 * such path. */
static const struct http_route *find_route(const struct http_server *s, const h2o_req_t *req,
                                           const char **allow)
{
    *allow = NULL;
    for (size_t i = 0; i < s->set.n_route; i++) {
        const struct http_route *r = &s->set.routes[i];
        if (!path_matches(req->path_normalized, r->path))
            continue;
        if (same(req->method, r->method) ||
            (same(req->method, "HEAD") && !strcmp(r->method, "GET")))
            return r;
        *allow = r->method;
    }
    return NULL;
}

static bool authorized(const struct http_server *s, const struct http_route *r,
                       const struct http_exchange *x)
{
    if (r && (r->auth == HTTP_PUBLIC || (r->auth == HTTP_METRICS && s->set.public_metrics)))
        return true;
    return s->keys.n == 0 || exchange_key(x);
}

/* May this key steer the engine? Any may, as long as none is named for it. */
static bool allowed(const struct http_server *s, const struct http_route *r,
                    const struct http_exchange *x)
{
    return !r || r->auth != HTTP_ADMIN || !s->keys.has_admin || exchange_key(x)->admin;
}

static void reply_no_route(struct http_exchange *x, const char *allow)
{
    h2o_req_t *req = x->req;
    char text[512];
    struct http_error error = {.code = allow ? Q_METHOD : Q_NOT_FOUND, .message = text};
    int n_path = req->path_normalized.len < 300 ? (int)req->path_normalized.len : 300;
    int n_method = req->method.len < 32 ? (int)req->method.len : 32;
    if (allow) {
        h2o_add_header_by_str(&req->pool, &req->res.headers, H2O_STRLIT("allow"), 0, NULL, allow,
                              strlen(allow));
        snprintf(text, sizeof(text), "%.*s takes %s, not %.*s", n_path, req->path_normalized.base,
                 allow, n_method, req->method.base);
    } else {
        snprintf(text, sizeof(text), "there is no %.*s %.*s here", n_method, req->method.base,
                 n_path, req->path_normalized.base);
    }
    http_reply_error(x, &error);
}

/* A browser sends other types across origins without asking; application/json it does not. Nor does
 * it leave out where it comes from, so that a request without body and origin is from no page. */
static bool is_json(const struct http_exchange *x)
{
    if (!http_body(x).n && !http_header(x, "content-type").n && !http_header(x, "origin").n)
        return true;
    static const char want[] = "application/json";
    struct http_text type = http_header(x, "content-type");
    size_t n = sizeof(want) - 1;
    return type.n >= n && strncasecmp(type.data, want, n) == 0 &&
           (type.n == n || type.data[n] == ';' || type.data[n] == ' ');
}

static int on_request(h2o_handler_t *self, h2o_req_t *req)
{
    struct http_server *s = ((struct handler *)self)->server;
    const char *allow;
    const struct http_route *r = find_route(s, req, &allow);
    bool public = r && r->auth == HTTP_PUBLIC;
    bool full = !public && s->n_open >= s->set.open_max;
    struct http_exchange *x = exchange_new(s, req, public);
    if (!authorized(s, r, x))
        http_reply_error(
            x, &(struct http_error){.code = Q_UNAUTHORIZED,
                                    .message = "missing or wrong API key: expected the header "
                                               "\"Authorization: Bearer KEY\""});
    else if (!allowed(s, r, x))
        http_reply_error(x, &(struct http_error){.code = Q_FORBIDDEN,
                                                 .message = "this API key may not steer the "
                                                            "engine: in --api-key-file others are "
                                                            "marked admin"});
    else if (!r)
        reply_no_route(x, allow);
    else if (full)
        http_reply_error(x,
                         &(struct http_error){.code = Q_NO_SPACE,
                                              .message = "too many open requests; try again later",
                                              .retry_after_s = server_retry_after(s)});
    else if (!strcmp(r->method, "POST") && !is_json(x))
        http_reply_error(x,
                         &(struct http_error){.code = Q_MEDIA_TYPE,
                                              .message = "Content-Type must be application/json"});
    else
        r->handle(s->set.app, x);
    return 0;
}

/* The filter on h2o's own error answers: they are text/plain, ours never are. */
struct rewrite {
    h2o_ostream_t super;
    h2o_iovec_t body;
};

static void rewrite_send(h2o_ostream_t *self, h2o_req_t *req, h2o_iovec_t *bufs, size_t n,
                         h2o_send_state_t state)
{
    (void)bufs, (void)n;
    struct rewrite *r = (struct rewrite *)self;
    h2o_ostream_send_next(self, req, &r->body, 1, state);
}

static void on_setup_ostream(h2o_filter_t *self, h2o_req_t *req, h2o_ostream_t **slot)
{
    (void)self;
    ssize_t at = h2o_find_header(&req->res.headers, H2O_TOKEN_CONTENT_TYPE, SIZE_MAX);
    bool plain = at != -1 && req->res.headers.entries[at].value.len >= 10 &&
                 memcmp(req->res.headers.entries[at].value.base, "text/plain", 10) == 0;
    if (plain && req->res.status >= 400 && !same(req->input.method, "HEAD")) {
        struct buf body = BUF_INIT;
        char text[128];
        snprintf(text, sizeof(text), "%s",
                 req->res.status == 413 ? "the request body is larger than --max-body-bytes allows"
                                        : "the request is not valid HTTP");
        http_error_body(&body, &(struct http_error){.status = req->res.status, .message = text});
        struct rewrite *r = (struct rewrite *)h2o_add_ostream(req, sizeof(*r), slot);
        r->super.do_send = rewrite_send;
        r->body = h2o_strdup(&req->pool, buf_str(&body), body.len);
        req->res.content_length = body.len;
        h2o_set_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE,
                       H2O_STRLIT("application/json"), 1);
        metric_add(req->res.status >= 500 ? METRIC_HTTP_5XX : METRIC_HTTP_4XX, 1);
        buf_release(&body);
        slot = &r->super.next;
    }
    h2o_setup_next_ostream(req, slot);
}

static void add_filter(h2o_pathconf_t *path)
{
    h2o_filter_t *f = h2o_create_filter(path, sizeof(*f));
    f->on_setup_ostream = on_setup_ostream;
}

static void on_ping_timer(uv_timer_t *timer)
{
    struct http_server *s = timer->data;
    int64_t now = (int64_t)uv_now(s->loop);
    for (struct http_exchange *x = s->open, *next; x; x = next) {
        next = x->next;
        exchange_ping(x, now);
    }
}

/* One event at a time: handling one may end another exchange of the same batch. */
static void on_hangup(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct http_server *s = poll->data;
    struct epoll_event ev;
    while (epoll_wait(s->hangup_fd, &ev, 1, 0) == 1)
        exchange_hung_up(ev.data.ptr);
}

static void configure(struct http_server *s)
{
    h2o_config_init(&s->config);
    s->config.server_name = h2o_iovec_init(H2O_STRLIT("quire"));
    s->config.max_request_entity_size = s->set.body_max;
    s->config.http1.req_timeout = REQUEST_READ_MS;
    s->config.http2.idle_timeout = REQUEST_READ_MS;
    s->config.http2.max_concurrent_requests_per_connection = HTTP2_STREAMS;
    h2o_hostconf_t *host =
        h2o_config_register_host(&s->config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *path = h2o_config_register_path(host, "/", 0);
    struct handler *h = (struct handler *)h2o_create_handler(path, sizeof(*h));
    h->super.on_req = on_request;
    h->server = s;
    add_filter(path);
    add_filter(&host->fallback_path);
    h2o_context_init(&s->ctx, s->loop, &s->config);
    s->accept_ctx.ctx = &s->ctx;
    s->accept_ctx.hosts = s->config.hosts;
}

FALLIBLE http_server_new(struct http_server **out, uv_loop_t *loop, const struct http_config *c,
                         struct q_err *e)
{
    enum q_code rc;
    struct http_server *s = q_calloc(1, sizeof(*s));
    *out = NULL;
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "http: no memory for the server");
    s->loop = loop;
    s->set = *c;
    if ((rc = api_keys_add(&s->keys, c->api_keys, c->n_api_key, e)) ||
        (c->api_key_file && *c->api_key_file &&
         (rc = api_keys_add_file(&s->keys, c->api_key_file, e))) ||
        (rc = api_keys_check(&s->keys, e)))
        goto fail;
    s->hangup_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->hangup_fd < 0) {
        rc = q_fail(e, Q_IO, "http: epoll_create1: %s", strerror(errno));
        goto fail;
    }
    configure(s);
    s->pinger.data = s->hangup.data = s->listener.data = s;
    uint64_t check_ms = c->ping_ms / PING_CHECKS ? c->ping_ms / PING_CHECKS : 1;
    uv_timer_init(loop, &s->pinger);
    uv_timer_start(&s->pinger, on_ping_timer, check_ms, check_ms);
    uv_poll_init(loop, &s->hangup, s->hangup_fd);
    uv_poll_start(&s->hangup, UV_READABLE, on_hangup);
    *out = s;
    return Q_OK;
fail:
    api_keys_release(&s->keys);
    q_free(s);
    return rc;
}

static void free_handle(uv_handle_t *h)
{
    q_free(h);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct http_server *s = listener->data;
    if (status != 0)
        return;
    uv_tcp_t *client = q_calloc(1, sizeof(*client));
    if (!client)
        return;
    uv_tcp_init(s->loop, client);
    if (uv_accept(listener, (uv_stream_t *)client) != 0) {
        uv_close((uv_handle_t *)client, free_handle);
        return;
    }
    uv_tcp_nodelay(client, 1);
    h2o_accept(&s->accept_ctx, h2o_uv_socket_create((uv_stream_t *)client, free_handle));
}

static enum q_code listen_now(struct http_server *s, const char *what, struct q_err *e)
{
    struct sockaddr_storage sa;
    int n = sizeof(sa);
    int rc = uv_listen((uv_stream_t *)&s->listener, LISTEN_BACKLOG, on_connection);
    if (rc)
        return q_fail(e, Q_IO, "cannot listen on %s: %s%s", what, uv_strerror(rc), net_hint(-rc));
    if (uv_tcp_getsockname(&s->listener, (struct sockaddr *)&sa, &n) == 0)
        s->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                                 : ((struct sockaddr_in *)&sa)->sin_port);
    s->listening = true;
    return Q_OK;
}

FALLIBLE http_server_listen(struct http_server *s, const char *host, uint16_t port, struct q_err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8], what[300];
    snprintf(service, sizeof(service), "%u", port);
    snprintf(what, sizeof(what), "%.255s port %u", host, port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc)
        return q_fail(e, Q_IO, "cannot listen on %s: %s", what, gai_strerror(rc));
    uv_tcp_init(s->loop, &s->listener);
    rc = uv_tcp_bind(&s->listener, found->ai_addr, 0);
    freeaddrinfo(found);
    if (rc)
        return q_fail(e, Q_IO, "cannot listen on %s: %s%s", what, uv_strerror(rc), net_hint(-rc));
    return listen_now(s, what, e);
}

FALLIBLE http_server_listen_fd(struct http_server *s, int fd, struct q_err *e)
{
    uv_tcp_init(s->loop, &s->listener);
    int rc = uv_tcp_open(&s->listener, fd);
    if (rc)
        return q_fail(e, Q_IO, "cannot listen on the inherited descriptor %d: %s", fd,
                      uv_strerror(rc));
    return listen_now(s, "the inherited socket", e);
}

uint16_t http_server_port(const struct http_server *s)
{
    return s->port;
}

uint32_t http_server_n_open(const struct http_server *s)
{
    return s->n_open;
}

void http_server_drain(struct http_server *s, void (*done)(void *ctx), void *ctx)
{
    if (s->listening)
        uv_close((uv_handle_t *)&s->listener, NULL);
    s->listening = false;
    h2o_context_request_shutdown(&s->ctx);
    if (s->n_exchange == 0) {
        done(ctx);
        return;
    }
    s->drained = done;
    s->drained_ctx = ctx;
}
