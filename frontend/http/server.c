/* SPDX-License-Identifier: Apache-2.0 */
/* h2o has one host, one path "/" and one handler here (request.c); the routes are a table. */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/http/head.h"
#include "frontend/http/http_internal.h"

#define REQUEST_READ_MS   60000 /* to send head and body; also the idle time of a connection */
#define HTTP2_STREAMS     256   /* of one connection, handled at once */
#define LISTEN_BACKLOG    1024
#define RETRY_AFTER_MAX   60   /* seconds */
#define PING_CHECKS       4    /* per ping interval */
#define PING_OFF_CHECK_MS 1000 /* without pings: interval of the check for lost clients */

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

/* Before a body is read: no key is required, or the head has a known one. */
static bool has_access(const void *ctx, const char *head, size_t n)
{
    const struct http_server *s = ctx;
    struct head_value v;
    return !s->keys.n ||
           (head_find(head, n, "authorization", &v) && api_keys_find(&s->keys, v.data, v.n)) ||
           (head_find(head, n, "x-api-key", &v) && api_keys_find_plain(&s->keys, v.data, v.n));
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
    request_handle(s, path);
    filter_add(s, path);
    filter_add(s, &host->fallback_path);
    h2o_context_init(&s->ctx, s->loop, &s->config);
    s->accept_ctx.ctx = &s->ctx;
    s->accept_ctx.hosts = s->config.hosts;
    guard_init(&s->guard, s->loop, &s->accept_ctx, has_access, s);
    h2o_socket_buffer_mmap_settings.threshold = SIZE_MAX; /* bodies are in memory, not in /tmp */
}

FALLIBLE http_server_new(struct http_server **out, uv_loop_t *loop, const struct http_config *c,
                         struct q_err *e)
{
    enum q_code rc;
    struct http_server *s = q_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "http: out of memory for the server");
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
    s->pinger.data = s->hangup.data = s;
    uint64_t check_ms = !c->ping_ms                ? PING_OFF_CHECK_MS
                        : c->ping_ms > PING_CHECKS ? c->ping_ms / PING_CHECKS
                                                   : 1;
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

static void on_connection(uv_stream_t *listener, int status)
{
    struct http_server *s = listener->data;
    if (status == 0)
        guard_accept(&s->guard, listener);
}

FALLIBLE http_server_listen(struct http_server *s, const char *host, uint16_t port, struct q_err *e)
{
    struct net_sockets found;
    enum q_code rc = net_listen(&found, host, port, e);
    for (uint32_t i = 0; i < found.n; i++)
        if (rc)
            close(found.fd[i]);
        else
            rc = http_server_listen_fd(s, found.fd[i], e);
    return rc;
}

FALLIBLE http_server_listen_fd(struct http_server *s, int fd, struct q_err *e)
{
    struct sockaddr_storage sa;
    int n = sizeof sa;
    Q_ASSERT(s->n_listener < NET_LISTEN_MAX);
    uv_tcp_t *listener = &s->listeners[s->n_listener];
    uv_tcp_init(s->loop, listener);
    listener->data = s;
    int rc = uv_tcp_open(listener, fd);
    if (!rc)
        rc = uv_listen((uv_stream_t *)listener, LISTEN_BACKLOG, on_connection);
    if (rc)
        return q_fail(e, Q_IO, "cannot listen on the inherited file descriptor %d: %s%s", fd,
                      uv_strerror(rc), net_hint(-rc));
    if (uv_tcp_getsockname(listener, (struct sockaddr *)&sa, &n) == 0)
        s->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                                 : ((struct sockaddr_in *)&sa)->sin_port);
    s->n_listener++;
    return Q_OK;
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
    for (uint32_t i = 0; i < s->n_listener; i++)
        uv_close((uv_handle_t *)&s->listeners[i], NULL);
    s->n_listener = 0;
    h2o_context_request_shutdown(&s->ctx);
    if (s->n_exchange == 0) {
        done(ctx);
        return;
    }
    s->drained = done;
    s->drained_ctx = ctx;
}
