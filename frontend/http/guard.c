/* SPDX-License-Identifier: Apache-2.0 */
/* h2o calls sock->_cb.read when bytes arrive, and sets it again each time it starts to read. So the
 * hook is installed when a connection is accepted, and again, before the loop waits, after a
 * request is answered. If that is too late (the next bytes arrived in the same iteration of the
 * loop) the head is checked when its handler is called: later, but before the request has any
 * effect. Pipelined requests are already in the socket's input; each is checked when the previous
 * one is answered, before h2o reads it.
 *
 * h2o decodes a body with faulty chunks, and may be wrong about its end; but the request is
 * answered with 400 and the connection is closed, so that no later bytes are read as a request.
 *
 * The lingering close holds a duplicate of the descriptor: h2o closes its own, and the kernel ends
 * the connection when the last one is closed. */
#include "frontend/http/guard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <inttypes.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/http/chunks.h"
#include "frontend/http/head.h"
#include "frontend/http/http_internal.h"
#include "frontend/http/tls_relay.h"

#define LINGER_MS      60000             /* time for a client to stop sending */
#define LINGER_IDLE    5000              /* ms without a byte */
#define LINGER_SIZE    ((size_t)1 << 30) /* bytes thrown away */
#define LINGER_MAX     256               /* connections at once */
#define PIECE          65536
#define REFUSED_LOG_MS 5000
#define HEAD_KIB       408 /* H2O_MAX_REQLEN, for the message */
static_assert(HEAD_KIB == H2O_MAX_REQLEN / 1024, "HEAD_KIB is h2o's limit");

#define NUMBER_OF(x) #x
#define NUMBER(x)    NUMBER_OF(x)

/* libh2o exports its parser of heads, but installs no header for it. Returns the size of a complete
 * head; -1: invalid, -2: incomplete. */
struct phr_header {
    const char *name;
    size_t n_name;
    const char *value;
    size_t n_value;
};
int phr_parse_request(const char *bytes, size_t n, const char **method, size_t *n_method,
                      const char **path, size_t *n_path, int *minor_version,
                      struct phr_header *headers, size_t *n_header, size_t n_before);

struct guard_connection {
    uv_tcp_t tcp; /* first: libuv returns this pointer */
    struct guard *guard;
    h2o_socket_t *sock;
    const char *fault; /* error in the current request's head */
    bool large;        /* the error is that h2o cannot hold the head */
    bool unread;       /* the current request's body is not read: it has no access */
    bool fresh;        /* the next head is not checked yet */
    bool listed;       /* in guard->unhooked */
    bool chunked;      /* the current request's body is chunked */
    bool expects;      /* and follows "100 Continue" */
    bool is_new;       /* in guard->n_new */
    bool counted;      /* in guard->connections, with its address */
    uint64_t address;
    size_t n_held; /* bytes of requests: in guard->bytes */
    struct chunks chunks;
    struct guard_connection *next, *prev;
};

static void unlist(struct guard_connection *c)
{
    if (!c->listed)
        return;
    c->listed = false;
    if (c->prev)
        c->prev->next = c->next;
    else
        c->guard->unhooked = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void list(struct guard_connection *c)
{
    if (c->listed)
        return;
    c->listed = true;
    c->prev = NULL;
    c->next = c->guard->unhooked;
    if (c->next)
        c->next->prev = c;
    c->guard->unhooked = c;
}

static void on_closed(uv_handle_t *handle)
{
    struct guard_connection *c = (struct guard_connection *)handle;
    unlist(c);
    body_bytes_hold(c->guard->bytes, &c->n_held, 0);
    c->guard->n_new -= c->is_new;
    if (c->counted)
        connections_give(c->guard->connections, c->address);
    q_free(c);
}

/* The limit that a head exceeds, NULL: none; h2o would close the connection or reject the head as
 * invalid. n_head: 0 while the head is incomplete. */
static const char *excess(const char *bytes, size_t n, size_t n_head)
{
    if (n_head ? n_head > H2O_MAX_REQLEN : n >= H2O_MAX_REQLEN)
        return "the request line and headers exceed " NUMBER(HEAD_KIB) " KiB";
    if (head_n_field(bytes, n, H2O_MAX_HEADERS) > H2O_MAX_HEADERS)
        return "there are more than " NUMBER(H2O_MAX_HEADERS) " headers";
    return NULL;
}

/* Does h2o's parser reject the bytes as HTTP/1? It would respond without X-Request-Id and error
 * body. */
static bool malformed(const char *bytes, size_t n)
{
    static const char http2[] = "PRI * HTTP/2";
    struct phr_header headers[H2O_MAX_HEADERS];
    const char *method, *path;
    size_t n_method, n_path, n_header = H2O_MAX_HEADERS;
    int minor_version;
    return phr_parse_request(bytes, n, &method, &n_method, &path, &n_path, &minor_version, headers,
                             &n_header, 0) == -1 &&
           (n < sizeof http2 - 1 || memcmp(bytes, http2, sizeof http2 - 1) != 0);
}

/* Replace the `have` bytes behind `skip`, which h2o cannot parse, by a valid head. */
static void exchange_head(struct guard_connection *c, size_t skip, size_t have)
{
    size_t n = have > H2O_MAX_REQLEN ? H2O_MAX_REQLEN : have;
    if (n < HEAD_BLANK_MIN) {
        n = HEAD_BLANK_MIN;
        if (!h2o_buffer_reserve(&c->sock->input, n - have).base)
            return; /* then h2o answers */
    }
    head_blank(c->sock->input->bytes + skip, n);
    c->sock->input->size = skip + n;
    c->fresh = false;
}

/* Check the head that begins `skip` bytes into the input, if it is complete or already too large. A
 * head that is too large or malformed is replaced by a valid one. Returns the position of the
 * head's chunked body in the input; 0: no such body. */
static size_t look(struct guard_connection *c, size_t skip)
{
    h2o_buffer_t *input = c->sock->input;
    if (!c->fresh || !input || input->size <= skip)
        return 0;
    size_t have = input->size - skip;
    size_t n = head_length(input->bytes + skip, have);
    const char *too_much = excess(input->bytes + skip, have, n);
    if (too_much || malformed(input->bytes + skip, have)) {
        c->large = too_much;
        c->fault = too_much ? too_much : "the request line or a header line is malformed";
        exchange_head(c, skip, have);
        return 0;
    }
    if (!n)
        return 0;
    c->fresh = false;
    c->fault = head_fault(input->bytes + skip, n);
    c->unread = !c->fault && head_has_body(input->bytes + skip, n) &&
                !c->guard->has_access(c->guard->ctx, input->bytes + skip, n);
    if (c->fault || c->unread)
        head_unframe(input->bytes + skip, n);
    c->chunked =
        !c->fault && !c->unread && head_find(input->bytes + skip, n, "transfer-encoding", NULL);
    c->chunks = (struct chunks){.n_digit = 0};
    c->expects = c->chunked && head_find(input->bytes + skip, n, "expect", NULL);
    if (c->expects)
        list(c);
    return c->chunked ? skip + n : 0;
}

/* Check the input from here on as a part of a chunked body. */
static void follow(struct guard_connection *c, size_t at)
{
    h2o_buffer_t *input = c->sock->input;
    const char *fault = chunks_take(&c->chunks, input->bytes + at, input->size - at);
    if (fault && !c->fault)
        c->fault = fault;
}

struct lingering {
    uv_poll_t poll;
    uv_timer_t timer;
    struct guard *guard;
    int fd;
    int n_handle; /* still open */
    size_t left;  /* bytes that may yet come */
    uint64_t end_ms;
};

static void on_linger_closed(uv_handle_t *handle)
{
    struct lingering *l = handle->data;
    if (--l->n_handle)
        return;
    close(l->fd);
    l->guard->n_linger--;
    q_free(l);
}

static void end_linger(struct lingering *l)
{
    if (uv_is_closing((uv_handle_t *)&l->poll))
        return;
    uv_close((uv_handle_t *)&l->poll, on_linger_closed);
    uv_close((uv_handle_t *)&l->timer, on_linger_closed);
}

static void on_linger_time(uv_timer_t *timer)
{
    end_linger(timer->data);
}

static void on_linger_bytes(uv_poll_t *poll, int status, int events)
{
    static char thrown_away[PIECE];
    struct lingering *l = poll->data;
    (void)events;
    ssize_t n = status ? 0 : recv(l->fd, thrown_away, sizeof thrown_away, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || (size_t)n >= l->left || uv_now(l->guard->loop) >= l->end_ms) {
        end_linger(l);
        return;
    }
    l->left -= (size_t)n;
    uv_timer_start(&l->timer, on_linger_time, LINGER_IDLE, 0);
}

static void begin_linger(struct lingering *l)
{
    shutdown(l->fd, SHUT_WR);
    l->n_handle = 2;
    l->poll.data = l->timer.data = l;
    uv_timer_init(l->guard->loop, &l->timer);
    uv_timer_start(&l->timer, on_linger_time, LINGER_IDLE, 0);
    l->end_ms = uv_now(l->guard->loop) + LINGER_MS;
    uv_poll_init(l->guard->loop, &l->poll, l->fd);
    uv_poll_start(&l->poll, UV_READABLE, on_linger_bytes);
}

/* h2o has released the request, and the kernel has the response. */
static void on_linger_begin(void *p)
{
    begin_linger(*(struct lingering **)p);
}

/* NULL: there are too many of them, or no memory or descriptor. */
static struct lingering *new_lingering(struct guard *g, int fd)
{
    struct lingering *l = g->n_linger < LINGER_MAX ? q_calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    *l = (struct lingering){.guard = g, .left = LINGER_SIZE};
    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (l->fd < 0) {
        q_free(l);
        return NULL;
    }
    g->n_linger++;
    return l;
}

/* Send an error without h2o, as far as the socket takes it now, and linger. given: the client's
 * X-Request-Id. */
static void refuse(struct guard *g, int fd, const struct http_error *error, struct http_text given)
{
    struct buf body = BUF_INIT, all = BUF_INIT;
    char id[HTTP_ID_MAX + 1];
    exchange_id(given, id);
    http_error_body(&body, error);
    buf_printf(&all,
               "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
               "Retry-After: %u\r\nX-Request-Id: %s\r\nConnection: close\r\n\r\n%s",
               error->status, exchange_reason(error->status), body.len, error->retry_after_s, id,
               buf_str(&body));
    const ssize_t n = send(fd, buf_str(&all), all.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    struct lingering *l = n == (ssize_t)all.len ? new_lingering(g, fd) : NULL;
    if (l)
        begin_linger(l);
    metric_add(error->status >= 500 ? METRIC_HTTP_5XX : METRIC_HTTP_4XX, 1);
    buf_release(&body);
    buf_release(&all);
}

static void log_refused(struct guard *g, const char *why)
{
    if (!log_ratelimit(&g->refused_log_ms, &g->n_unlogged, REFUSED_LOG_MS))
        return;
    log_warning("http: %s (%" PRIu64 " such lines omitted before)", why, g->n_unlogged);
    g->n_unlogged = 0;
}

/* The request that arrives is too much beside those that are held. */
static void refuse_bytes(struct guard_connection *c)
{
    const h2o_buffer_t *input = c->sock->input;
    struct head_value id = {"", 0};
    const size_t n = head_length(input->bytes, input->size);
    if (n)
        head_find(input->bytes, n, "x-request-id", &id);
    log_refused(c->guard, "a request was refused: the requests in memory exceed "
                          "--max-total-body-bytes");
    refuse(c->guard, h2o_socket_get_fd(c->sock),
           &(struct http_error){
               .status = 429,
               .message = "the requests in the server's memory exceed its limit "
                          "(--max-total-body-bytes); retry later",
               .retry_after_s = 1,
           },
           (struct http_text){id.data, id.n});
}

/* Count a connection that was accepted. False: it was refused. */
static bool take_connection(struct guard_connection *c, const struct sockaddr *from)
{
    static const struct {
        const char *log, *message;
    } refusals[] = {
        [CONNECTIONS_FULL] =
            {
                "a connection was refused: there are --max-connections",
                "the server has too many connections (--max-connections); retry later",
            },
        [CONNECTIONS_FULL_ADDRESS] =
            {
                "a connection was refused: one address has --max-connections-per-address",
                "this address has too many connections to the server "
                "(--max-connections-per-address); close some of them",
            },
    };
    int fd = -1;
    c->address = connections_address(from);
    const enum connection_refusal why = connections_take(c->guard->connections, c->address);
    c->counted = why == CONNECTION_TAKEN;
    if (c->counted)
        return true;
    log_refused(c->guard, refusals[why].log);
    if (!uv_fileno((uv_handle_t *)&c->tcp, &fd))
        refuse(c->guard, fd,
               &(struct http_error){
                   .status = 503,
                   .message = refusals[why].message,
                   .retry_after_s = 1,
               },
               (struct http_text){"", 0});
    return false;
}

static void on_read(h2o_socket_t *sock, const char *err)
{
    struct guard_connection *c = sock->on_close.data;
    if (!err && !body_bytes_hold(c->guard->bytes, &c->n_held, sock->input->size)) {
        refuse_bytes(c);
        err = "the bytes of all requests exceed their limit"; /* h2o closes the connection */
    }
    if (!err) {
        bool within = c->chunked; /* h2o has removed the framing of the bytes before */
        size_t body = look(c, 0);
        if (body || within)
            follow(c, body ? body : sock->input->size - sock->bytes_read);
    }
    c->guard->h2o_read(sock, err);
}

static void hook(struct guard_connection *c)
{
    if (c->sock->_cb.read == c->guard->h2o_read)
        c->sock->_cb.read = on_read;
}

/* The time at which h2o starts to read again after "100 Continue" is unknown: hook until the body
 * has arrived. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct guard *g = prepare->data;
    for (struct guard_connection *c = g->unhooked, *next; c; c = next) {
        next = c->next;
        hook(c);
        if (!c->expects)
            unlist(c);
    }
}

void guard_init(struct guard *g, uv_loop_t *loop, h2o_accept_ctx_t *accept,
                bool (*has_access)(const void *ctx, const char *head, size_t n), const void *ctx)
{
    *g = (struct guard){.loop = loop, .accept = accept, .has_access = has_access, .ctx = ctx};
    g->hooks.data = g;
    uv_prepare_init(loop, &g->hooks);
    uv_prepare_start(&g->hooks, on_prepare);
    uv_unref((uv_handle_t *)&g->hooks);
}

/* Let the relay decrypt what the server reads from the connection. */
static bool begin_tls(struct guard_connection *c)
{
    struct guard *g = c->guard;
    struct q_err e = Q_ERR_INIT;
    int fd;
    if (!g->relay)
        return true;
    if (!uv_fileno((uv_handle_t *)&c->tcp, &fd) && !tls_relay_insert(g->relay, g->tls, fd, &e))
        return true;
    log_refused(g, e.code ? e.message : "a connection has no descriptor");
    return false;
}

/* The connection is accepted: count it and give it to h2o. */
static void begin_connection(struct guard_connection *c)
{
    struct guard *g = c->guard;
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    int n = sizeof from;
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&from, &n) != 0)
        n = 0;
    uv_tcp_nodelay(&c->tcp, 1);
    if (!begin_tls(c) || !take_connection(c, (struct sockaddr *)&from)) {
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    c->is_new = true;
    g->n_new++;
    c->sock = h2o_uv_socket_create((uv_stream_t *)&c->tcp, on_closed);
    c->sock->on_close.data = c;
    if (g->relay) /* the socket's own would be that of the pair */
        h2o_socket_setpeername(c->sock, (struct sockaddr *)&from, (socklen_t)n);
    h2o_accept(g->accept, c->sock);
    if (!g->h2o_read)
        g->h2o_read = c->sock->_cb.read;
    hook(c);
}

static struct guard_connection *new_connection(struct guard *g)
{
    struct guard_connection *c = q_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->guard = g;
    c->fresh = true;
    uv_tcp_init(g->loop, &c->tcp);
    return c;
}

bool guard_accept(struct guard *g, uv_stream_t *listener)
{
    struct guard_connection *c = new_connection(g);
    if (!c)
        return false;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0)
        uv_close((uv_handle_t *)&c->tcp, on_closed);
    else
        begin_connection(c);
    return true;
}

void guard_accept_queued(struct guard *g, uv_stream_t *listener, unsigned n_max)
{
    uv_os_fd_t fd;
    if (uv_fileno((const uv_handle_t *)listener, &fd) != 0)
        return;
    for (unsigned i = 0; i < n_max; i++) {
        const int accepted = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted < 0 && errno == ECONNABORTED)
            continue;
        if (accepted < 0)
            return;
        struct guard_connection *c = new_connection(g);
        if (c && uv_tcp_open(&c->tcp, accepted) == 0) {
            begin_connection(c);
            continue;
        }
        close(accepted);
        if (c)
            uv_close((uv_handle_t *)&c->tcp, on_closed);
    }
}

static struct guard_connection *connection_of(h2o_req_t *req)
{
    h2o_socket_t *sock = req->conn->callbacks->get_socket(req->conn);
    return req->version < 0x200 && sock ? sock->on_close.data : NULL;
}

bool guard_body_unread(h2o_req_t *req)
{
    const struct guard_connection *c = connection_of(req);
    return c && c->unread;
}

void guard_note_request(h2o_req_t *req)
{
    h2o_socket_t *sock = req->conn->callbacks->get_socket(req->conn);
    struct guard_connection *c = sock ? sock->on_close.data : NULL;
    if (!c)
        return;
    c->guard->n_new -= c->is_new;
    c->is_new = false;
}

const char *guard_fault(h2o_req_t *req, bool *large)
{
    struct guard_connection *c = connection_of(req);
    if (!c)
        return NULL;
    look(c, 0);
    c->expects = false;
    *large = c->large;
    if (c->chunked && c->chunks.state != CHUNKS_WHOLE)
        req->http1_is_persistent = 0;
    return c->fault;
}

void guard_answered(h2o_req_t *req, size_t n_request)
{
    struct guard_connection *c = connection_of(req);
    if (!c || !req->http1_is_persistent)
        return;
    c->fault = NULL;
    c->large = c->unread = false;
    c->fresh = true;
    c->chunked = c->expects = false;
    const size_t n_input = c->sock->input ? c->sock->input->size : 0;
    body_bytes_hold(c->guard->bytes, &c->n_held, n_input > n_request ? n_input - n_request : 0);
    size_t body = look(c, n_request);
    if (body)
        follow(c, body);
    list(c);
}

void guard_linger(struct guard *g, h2o_req_t *req)
{
    struct guard_connection *c = connection_of(req);
    req->http1_is_persistent = 0; /* what follows is no request */
    struct lingering *l = c ? new_lingering(g, h2o_socket_get_fd(c->sock)) : NULL;
    if (l)
        *(struct lingering **)h2o_mem_alloc_shared(&req->pool, sizeof l, on_linger_begin) = l;
}
