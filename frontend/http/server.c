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

#define REQUEST_READ_MS  60000 /* to send head and body; also the idle time of a connection */
#define HTTP2_STREAMS    256   /* of one connection, handled at once */
#define RETRY_AFTER_MAX  60    /* seconds */
#define PING_CHECKS      4     /* per ping interval */
#define CHECK_MAX_MS     1000  /* longest interval of the check for lost clients */
#define ACCEPTS_MAX      64    /* in one iteration of the loop: about 5 ms */
#define HTTP_METRICS_MAX 32

uint32_t server_retry_after(const struct http_server *s)
{
    double seconds = s->pace_ms / 1000;
    return seconds < 1                 ? 1
           : seconds > RETRY_AFTER_MAX ? RETRY_AFTER_MAX
                                       : (uint32_t)(seconds + 0.999);
}

/* Among several keys, one with its share of the slots gets no more of the last quarter; the share
 * leaves room for another key besides those that have open requests. */
static bool has_share(const struct http_server *s, const struct api_key *key)
{
    uint64_t weights = key->weight + 1;
    if (s->n_open < s->set.open_max - s->set.open_max / 4)
        return true;
    for (size_t i = 0; i < s->keys.n; i++)
        weights += s->n_key_open[i] && &s->keys.items[i] != key ? s->keys.items[i].weight : 0;
    return s->n_key_open[key - s->keys.items] * weights < (uint64_t)s->set.open_max * key->weight;
}

bool server_has_slot(const struct http_server *s, enum http_slot slot, const struct api_key *key)
{
    if (slot == SLOT_METRICS)
        return s->n_metrics < HTTP_METRICS_MAX;
    return slot == SLOT_NONE ||
           (s->n_open < s->set.open_max && (s->keys.n < 2 || !key || has_share(s, key)));
}

void server_take_slot(struct http_exchange *x, enum http_slot slot)
{
    struct http_server *s = x->server;
    x->slot = slot;
    s->n_metrics += slot == SLOT_METRICS;
    s->n_open += slot == SLOT_REQUEST;
    if (slot == SLOT_REQUEST && x->key && !x->key_removed)
        s->n_key_open[x->key - s->keys.items]++;
    metric_set(METRIC_OPEN_REQUESTS, s->n_open);
}

void server_give_slot(struct http_exchange *x)
{
    struct http_server *s = x->server;
    s->n_metrics -= x->slot == SLOT_METRICS;
    if (x->slot == SLOT_REQUEST) {
        int64_t now = clock_ms();
        if (s->finished_ms)
            s->pace_ms = 0.9 * s->pace_ms + 0.1 * (double)(now - s->finished_ms);
        s->finished_ms = now;
        s->n_open--;
        if (x->key && !x->key_removed)
            s->n_key_open[x->key - s->keys.items]--;
    }
    x->slot = SLOT_NONE;
    metric_set(METRIC_OPEN_REQUESTS, s->n_open);
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
    s->n_unread -= x->n_unread;
    body_bytes_hold(&s->bytes, &x->n_held, 0);
    server_give_slot(x);
    server_check_drained(s);
}

static void on_ping_timer(uv_timer_t *timer)
{
    struct http_server *s = timer->data;
    int64_t now = (int64_t)uv_now(s->loop);
    server_accept_next(s); /* if there was no memory for it */
    for (struct http_exchange *x = s->open, *next; x; x = next) {
        next = x->next;
        exchange_tick(x, now);
    }
}

/* One event at a time: handling one may end another exchange of the same batch. */
static void on_hangup(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct http_server *s = poll->data;
    struct epoll_event ev;
    while (epoll_wait(s->hangup_fd, &ev, 1, 0) == 1)
        if (ev.events & (EPOLLHUP | EPOLLERR))
            exchange_hung_up(ev.data.ptr);
        else
            exchange_half_closed(ev.data.ptr);
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

/* The same of an HTTP/2 request whose body arrives. */
static bool request_has_access(const void *ctx, const h2o_req_t *req)
{
    const struct http_server *s = ctx;
    return !s->keys.n || request_key(s, req);
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
    s->guard.connections = &s->connections;
    s->guard.bytes = &s->bytes;
    body_bytes_init(&s->bytes, &s->ctx, s->set.total_body_max, request_has_access, s);
    h2o_socket_buffer_mmap_settings.threshold = SIZE_MAX; /* bodies are in memory, not in /tmp */
}

static FALLIBLE read_keys(struct api_keys *k, const struct http_config *c, struct q_err *e)
{
    enum q_code rc = api_keys_add(k, c->api_keys, c->n_api_key, e);
    if (rc == Q_OK && c->api_key_file && *c->api_key_file)
        rc = api_keys_add_file(k, c->api_key_file, e);
    return rc == Q_OK ? api_keys_check(k, e) : rc;
}

/* Let an open request go on with its key among the new ones, or alone if it is not one of them. */
static void move_key(struct http_exchange *x, const struct api_keys *fresh, uint32_t *n_open)
{
    if (!x->key)
        return;
    const struct api_key *key = api_keys_find_digest(fresh, x->key->digest);
    if (key) {
        n_open[key - fresh->items] += x->slot == SLOT_REQUEST;
        x->key = key;
        x->key_removed = false;
        return;
    }
    struct api_key *kept = h2o_mem_alloc_pool(&x->req->pool, sizeof *kept);
    *kept = *x->key;
    if (kept->models)
        kept->models = h2o_strdup(&x->req->pool, kept->models, SIZE_MAX).base;
    x->key = kept;
    x->key_removed = true;
}

FALLIBLE http_server_reload_keys(struct http_server *s, struct q_err *e)
{
    struct api_keys fresh = API_KEYS_INIT;
    uint32_t *n_open = NULL;
    enum q_code rc = read_keys(&fresh, &s->set, e);
    if (rc == Q_OK && !(n_open = q_calloc(fresh.n + 1, sizeof *n_open)))
        rc = q_fail(e, Q_NO_MEMORY, "http: out of memory for %zu keys", fresh.n);
    if (rc) {
        api_keys_release(&fresh);
        return rc;
    }
    for (struct http_exchange *x = s->open; x; x = x->next)
        move_key(x, &fresh, n_open);
    api_keys_release(&s->keys);
    q_free(s->n_key_open);
    s->keys = fresh;
    s->n_key_open = n_open;
    return Q_OK;
}

size_t http_server_n_key(const struct http_server *s)
{
    return s->keys.n;
}

void server_accept_next(struct http_server *s)
{
    uv_idle_stop(&s->accepter);
    for (uint32_t i = 0; i < s->n_listener; i++)
        s->has_next[i] =
            s->has_next[i] && !guard_accept(&s->guard, (uv_stream_t *)&s->listeners[i]);
}

static void on_accepter(uv_idle_t *accepter)
{
    server_accept_next(accepter->data);
}

static void on_iteration(uv_prepare_t *iteration)
{
    struct http_server *s = iteration->data;
    s->n_accepted = 0;
}

/* libuv calls this for as long as connections come, without a turn of anything else: a flood of
 * them would stop all streams and the heartbeats. It waits when one is not accepted. */
static void on_connection(uv_stream_t *listener, int status)
{
    struct http_server *s = listener->data;
    if (status)
        return;
    bool *has_next = &s->has_next[(uv_tcp_t *)listener - s->listeners];
    *has_next = s->n_accepted >= ACCEPTS_MAX;
    if (*has_next)
        uv_idle_start(&s->accepter, on_accepter);
    else
        *has_next = !guard_accept(&s->guard, listener); /* on_ping_timer tries again */
    s->n_accepted++;
}

FALLIBLE http_server_new(struct http_server **out, uv_loop_t *loop, const struct http_config *c,
                         struct q_err *e)
{
    enum q_code rc;
    SSL_CTX *tls = NULL;
    struct tls_relay *relay = NULL;
    struct http_server *s = q_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "http: out of memory for the server");
    s->loop = loop;
    s->set = *c;
    if ((rc = read_keys(&s->keys, c, e)) ||
        (rc = connections_init(&s->connections, c->connections_max, c->address_connections_max, e)))
        goto fail;
    s->n_key_open = q_calloc(s->keys.n + 1, sizeof *s->n_key_open);
    if (!s->n_key_open) {
        rc = q_fail(e, Q_NO_MEMORY, "http: out of memory for %zu keys", s->keys.n);
        goto fail;
    }
    s->hangup_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->hangup_fd < 0) {
        rc = q_fail(e, Q_IO, "http: epoll_create1: %s", strerror(errno));
        goto fail;
    }
    if ((rc = server_tls_new(s, &tls, &relay, e))) {
        close(s->hangup_fd);
        goto fail;
    }
    configure(s);
    server_tls_use(s, tls, relay);
    s->pinger.data = s->hangup.data = s;
    uint64_t check_ms = c->ping_ms && c->ping_ms / PING_CHECKS < CHECK_MAX_MS
                            ? c->ping_ms / PING_CHECKS + 1
                            : CHECK_MAX_MS;
    s->iteration.data = s->accepter.data = s;
    uv_prepare_init(loop, &s->iteration);
    uv_prepare_start(&s->iteration, on_iteration);
    uv_unref((uv_handle_t *)&s->iteration);
    uv_idle_init(loop, &s->accepter);
    uv_timer_init(loop, &s->pinger);
    uv_timer_start(&s->pinger, on_ping_timer, check_ms, check_ms);
    uv_poll_init(loop, &s->hangup, s->hangup_fd);
    uv_poll_start(&s->hangup, UV_READABLE, on_hangup);
    *out = s;
    return Q_OK;
fail:
    api_keys_release(&s->keys);
    connections_release(&s->connections);
    q_free(s->n_key_open);
    q_free(s);
    return rc;
}

FALLIBLE http_server_listen(struct http_server *s, const char *host, uint16_t port, struct q_err *e)
{
    struct net_sockets found;
    enum q_code rc = s->set.reuse_port ? net_listen_shared(&found, host, port, e)
                                       : net_listen(&found, host, port, e);
    s->is_port_own = true;
    for (uint32_t i = 0; i < found.n; i++)
        if (rc)
            close(found.fd[i]);
        else
            rc = http_server_listen_fd(s, found.fd[i], e);
    return rc;
}

FALLIBLE http_server_listen_path(struct http_server *s, const char *path, struct q_err *e)
{
    struct net_sockets found;
    const enum q_code rc = net_listen_path(&found, &s->path, path, e);
    return rc ? rc : http_server_listen_fd(s, found.fd[0], e);
}

void http_server_remove_path(struct http_server *s)
{
    net_path_remove(&s->path);
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
    if (uv_tcp_getsockname(listener, (struct sockaddr *)&sa, &n) == 0 && sa.ss_family != AF_UNIX)
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
