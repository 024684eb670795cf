/* SPDX-License-Identifier: Apache-2.0 */
/* h2o accepts one buffer at a time: h2o_send, then `proceed` when the kernel has accepted the
 * buffer. So an exchange has two buffers that are swapped: `sending`, which h2o reads, and
 * `pending`, which collects new bytes. `proceed` sends the collected bytes.
 *
 * The head of a stream is delayed until its first byte or its first ping. Until then an error can
 * still have its own status, which clients handle better than an error event inside a 200.
 *
 * h2o does not read from an HTTP/1 connection while a request is handled, so it would detect a lost
 * client only at the second write after the loss, and never while nothing is written. Therefore the
 * server watches the sockets with its own epoll (server.c). A client that sends no more may have
 * gone, or have closed only its side and wait for the answer: it gets some bytes that change
 * nothing (a comment in a stream, "100 Continue" before a response), and the kernel of one that has
 * gone resets the connection. HTTP/2 connections are always read and need no such check.
 *
 * A whole response is given to h2o in pieces, so that progress of a slow client is seen. A client
 * that takes no piece for write_timeout_ms, neither from h2o nor from the kernel's queue, loses its
 * connection, which in HTTP/2 has other streams too: h2o cannot end one of them while it holds its
 * bytes. */
#include <linux/sockios.h>
#include <openssl/rand.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "common/metrics.h"
#include "frontend/http/head.h"
#include "frontend/http/http_internal.h"

#define PIECE_BYTES      ((size_t)64 << 10)
#define UNREAD_BYTES_MAX ((size_t)64 << 20) /* whole answers: beyond it they keep their slots */
#define PING             ": ping\n\n"
#define CONTINUE         "HTTP/1.1 100 Continue\r\n\r\n"

void exchange_notify_gone(struct http_exchange *x)
{
    void (*gone)(void *ctx) = x->gone;
    x->gone = NULL;
    if (gone)
        gone(x->ctx);
}

static void on_dispose(void *p)
{
    struct http_exchange *x = p;
    if (!x->over && !x->broken)
        metric_add(METRIC_CLIENTS_GONE, 1);
    x->broken = true;
    exchange_notify_gone(x);
    server_exchange_over(x->server, x);
    guard_answered(x->req, x->n_request);
    buf_release(&x->pending);
    buf_release(&x->sending);
    buf_release(&x->unpacked);
}

static bool is_head(const h2o_req_t *req)
{
    return req->input.method.len == 4 && !memcmp(req->input.method.base, "HEAD", 4);
}

/* Give the next piece of a whole response to h2o. */
static void give_piece(struct http_exchange *x)
{
    const size_t left = x->sending.len - x->n_given;
    const size_t n = left < PIECE_BYTES || is_head(x->req) ? left : PIECE_BYTES;
    h2o_iovec_t v = h2o_iovec_init(NULL, 0);
    if (n)
        v = h2o_iovec_init(x->sending.data + x->n_given, n);
    x->n_given += n;
    x->over = n == left;
    x->busy = true;
    h2o_send(x->req, &v, v.len ? 1 : 0,
             x->over ? H2O_SEND_STATE_FINAL : H2O_SEND_STATE_IN_PROGRESS);
}

/* Pass the pending bytes, or the end, to h2o. */
static void flush(struct http_exchange *x)
{
    if (x->busy || x->over)
        return;
    if (x->broken) {
        x->over = true;
        h2o_send(x->req, NULL, 0, H2O_SEND_STATE_ERROR);
        return;
    }
    if (x->n_given) {
        give_piece(x);
        return;
    }
    if (x->pending.len == 0 && !x->ending)
        return;
    struct buf drained = x->sending;
    x->sending = x->pending;
    x->pending = drained;
    buf_reset(&x->pending);
    x->pending.max = HTTP_STREAM_BYTES_MAX;
    x->last_ms = (int64_t)uv_now(x->server->loop);
    x->busy = true;
    x->over = x->ending;
    h2o_iovec_t v = h2o_iovec_init(x->sending.data, x->sending.len);
    h2o_send(x->req, &v, v.len ? 1 : 0,
             x->ending ? H2O_SEND_STATE_FINAL : H2O_SEND_STATE_IN_PROGRESS);
}

static void on_proceed(h2o_generator_t *generator, h2o_req_t *req)
{
    (void)req;
    struct http_exchange *x = (struct http_exchange *)generator;
    x->busy = false;
    x->last_ms = (int64_t)uv_now(x->server->loop);
    flush(x);
}

bool http_id_acceptable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'z') &&
            !(s[i] >= 'A' && s[i] <= 'Z') && !strchr("-_.:", s[i]))
            return false;
    return n > 0 && n <= HTTP_ID_MAX;
}

void exchange_id(struct http_text given, char id[HTTP_ID_MAX + 1])
{
    if (http_id_acceptable(given.data, given.n)) {
        memcpy(id, given.data, given.n);
        id[given.n] = 0;
        return;
    }
    unsigned char random[16];
    if (RAND_bytes(random, sizeof random) != 1)
        memset(random, 0,
               sizeof random); /* an id serves to find lines in a log; uniqueness is not required */
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
}

void exchange_choose_id(struct http_exchange *x)
{
    exchange_id(http_header(x, "x-request-id"), x->id);
}

static void send_id(h2o_req_t *req, const char *id)
{
    h2o_add_header_by_str(&req->pool, &req->res.headers, H2O_STRLIT("x-request-id"), 0, NULL, id,
                          strlen(id));
}

void exchange_send_id(h2o_req_t *req)
{
    char *id = h2o_mem_alloc_pool(&req->pool, HTTP_ID_MAX + 1);
    const struct http_exchange x = {.req = req};
    exchange_id(http_header(&x, "x-request-id"), id);
    send_id(req, id);
}

static void watch_hangup(struct http_exchange *x)
{
    h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = x};
    if (x->req->version >= 0x200 || !sock)
        return;
    x->watched = epoll_ctl(x->server->hangup_fd, EPOLL_CTL_ADD, h2o_socket_get_fd(sock), &ev) == 0;
}

/* The size of a request in its connection's input. h2o keeps a request there until it is answered:
 * head, body (chunks joined), and then the bytes that follow. */
static size_t request_size(h2o_req_t *req)
{
    h2o_socket_t *sock = req->conn->callbacks->get_socket(req->conn);
    if (req->version >= 0x200 || !sock || !sock->input)
        return 0;
    if (req->entity.base)
        return (size_t)(req->entity.base + req->entity.len - sock->input->bytes);
    return head_length(sock->input->bytes, sock->input->size);
}

struct http_exchange *exchange_new(struct http_server *s, h2o_req_t *req)
{
    struct http_exchange *x = h2o_mem_alloc_shared(&req->pool, sizeof *x, on_dispose);
    *x = (struct http_exchange){
        .generator = {on_proceed, NULL},
        .req = req,
        .server = s,
        .body = {req->entity.base, req->entity.len},
        .n_request = request_size(req),
        .key = s->keys.n ? request_key(s, req) : NULL,
        .last_ms = (int64_t)uv_now(s->loop),
    };
    x->pending.max = HTTP_STREAM_BYTES_MAX;
    exchange_choose_id(x);
    watch_hangup(x);
    x->next = s->open;
    if (s->open)
        s->open->prev = x;
    s->open = x;
    s->n_exchange++;
    return x;
}

void exchange_hung_up(struct http_exchange *x)
{
    if (x->over || x->broken)
        return;
    metric_add(METRIC_CLIENTS_GONE, 1);
    exchange_notify_gone(x);
    x->broken = true;
    x->req->http1_is_persistent = 0;
    if (x->started) {
        flush(x);
        return;
    }
    /* The bytes are not read; the call ends the request in h2o. */
    x->over = x->started = true;
    x->req->res.status = q_code_http(Q_CANCELLED);
    x->req->res.reason = "Client Closed Request";
    h2o_send_inline(x->req, "", 0);
}

void exchange_half_closed(struct http_exchange *x)
{
    h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
    const int fd = sock ? h2o_socket_get_fd(sock) : -1;
    struct epoll_event ev = {.events = EPOLLONESHOT, .data.ptr = x}; /* HUP and ERR */
    if (x->over || x->broken)
        return;
    x->req->http1_is_persistent = 0;
    if (fd < 0 || epoll_ctl(x->server->hangup_fd, EPOLL_CTL_MOD, fd, &ev) != 0 ||
        (!x->started && x->req->version < 0x101)) { /* such a client knows no "100 Continue" */
        exchange_hung_up(x);
        return;
    }
    if (x->started && x->stream)
        http_stream_write(x, PING, sizeof PING - 1);
    else if (!x->started &&
             send(fd, CONTINUE, sizeof CONTINUE - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        exchange_hung_up(x);
}

/* The kernel tells h2o that there is room only when a third of its queue, which may be megabytes,
 * is empty. A client that reads slowly is seen before, by what is left in the queue. HTTP/2 has
 * other streams in the same queue. */
static void note_progress(struct http_exchange *x, int64_t now_ms)
{
    h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
    int n;
    if (x->req->version >= 0x200 || !sock || ioctl(h2o_socket_get_fd(sock), SIOCOUTQ, &n))
        return;
    const bool was_taken = x->n_queued - n >= (int)PIECE_BYTES;
    if (was_taken)
        x->last_ms = now_ms;
    if (was_taken || n > x->n_queued)
        x->n_queued = n;
}

/* The client takes nothing of what h2o holds. */
static bool is_stuck(struct http_exchange *x, int64_t now_ms)
{
    if (!x->started || !(x->busy || x->over))
        return false;
    note_progress(x, now_ms);
    return now_ms - x->last_ms > x->server->set.write_timeout_ms;
}

void exchange_tick(struct http_exchange *x, int64_t now_ms)
{
    if (is_stuck(x, now_ms)) {
        h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
        if (!x->broken)
            metric_add(METRIC_SLOW_CLIENTS, 1);
        x->broken = true;
        if (sock)
            shutdown(h2o_socket_get_fd(sock), SHUT_RDWR); /* h2o then disposes of its requests */
    }
    if (x->broken) {
        exchange_notify_gone(x);
        return;
    }
    const uint32_t ping_ms = x->server->set.ping_ms; /* 0: never */
    if (!x->stream || x->ending || x->busy || !ping_ms || now_ms - x->last_ms < ping_ms)
        return;
    http_stream_write(x, PING, sizeof PING - 1);
}

struct http_text http_body(const struct http_exchange *x)
{
    if (x->local)
        return x->local->body;
    return x->body;
}

struct http_text http_path(const struct http_exchange *x)
{
    if (x->local)
        return x->local->path;
    return (struct http_text){x->req->path_normalized.base, x->req->path_normalized.len};
}

struct http_text http_query(const struct http_exchange *x)
{
    if (x->local || x->req->query_at == SIZE_MAX)
        return (struct http_text){"", 0};
    return (struct http_text){x->req->path.base + x->req->query_at + 1,
                              x->req->path.len - x->req->query_at - 1};
}

static struct http_text header_of(const h2o_req_t *req, const char *name)
{
    ssize_t i = h2o_find_header_by_str(&req->headers, name, strlen(name), SIZE_MAX);
    if (i == -1)
        return (struct http_text){"", 0};
    const h2o_iovec_t *v = &req->headers.entries[i].value;
    return (struct http_text){v->base, v->len};
}

struct http_text http_header(const struct http_exchange *x, const char *name)
{
    return x->local ? (struct http_text){"", 0} : header_of(x->req, name);
}

/* OpenAI's clients send Authorization, Anthropic's X-Api-Key; one known key is sufficient. */
const struct api_key *request_key(const struct http_server *s, const h2o_req_t *req)
{
    const struct http_text header = header_of(req, "authorization"),
                           plain = header_of(req, "x-api-key");
    const struct api_key *key = api_keys_find(&s->keys, header.data, header.n);
    return key ? key : api_keys_find_plain(&s->keys, plain.data, plain.n);
}

const struct api_key *exchange_key(const struct http_exchange *x)
{
    return x->key;
}

uint32_t http_key_weight(const struct http_exchange *x)
{
    const struct api_key *key = exchange_key(x);
    return key ? key->weight : 1;
}

const char *http_key_name(const struct http_exchange *x)
{
    const struct api_key *key = exchange_key(x);
    return key ? key->name : "no key";
}

bool http_key_allows(const struct http_exchange *x, const char *model)
{
    const struct api_key *key = exchange_key(x);
    return !key || api_key_allows(key, model);
}

bool http_key(const struct http_exchange *x, unsigned char digest[32])
{
    const struct api_key *key = exchange_key(x);
    if (key)
        memcpy(digest, key->digest, sizeof key->digest);
    return key;
}

const char *http_request_id(const struct http_exchange *x)
{
    return x->id;
}

void http_on_gone(struct http_exchange *x, void (*gone)(void *ctx), void *ctx)
{
    x->gone = gone;
    x->ctx = ctx;
}

const char *exchange_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {503, "Service Unavailable"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return status >= 500 ? "Internal Server Error" : "Error";
}

static void set_head(struct http_exchange *x, int status, const char *content_type)
{
    h2o_req_t *r = x->req;
    r->res.status = status;
    r->res.reason = exchange_reason(status);
    h2o_add_header(&r->pool, &r->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL, content_type,
                   strlen(content_type));
    send_id(r, x->id);
    if (x->warning)
        h2o_add_header_by_str(&r->pool, &r->res.headers, H2O_STRLIT("x-quire-warning"), 0, NULL,
                              x->warning, strlen(x->warning));
    metric_add(status >= 500   ? METRIC_HTTP_5XX
               : status >= 400 ? METRIC_HTTP_4XX
                               : METRIC_HTTP_2XX,
               1);
}

void http_warn(struct http_exchange *x, const char *text)
{
    if (x->local)
        local_warn(x, text);
    else
        x->warning = h2o_strdup(&x->req->pool, text, strlen(text)).base;
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    if (x->over || x->broken || x->started || x->local)
        return;
    h2o_req_t *r = x->req;
    const h2o_iovec_t kept_name = h2o_strdup(&r->pool, name, strlen(name));
    const h2o_iovec_t kept = h2o_strdup(&r->pool, value, strlen(value));
    h2o_add_header_by_str(&r->pool, &r->res.headers, kept_name.base, kept_name.len, 0, NULL,
                          kept.base, kept.len);
}

/* The slot is free for another request, unless clients leave too much unread. */
static void answer_is_made(struct http_exchange *x, size_t n_byte)
{
    struct http_server *s = x->server;
    if (s->n_unread + n_byte > UNREAD_BYTES_MAX)
        return;
    x->n_unread = n_byte;
    s->n_unread += n_byte;
    server_give_slot(x);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body)
{
    if (x->over || x->broken || x->started) {
        buf_release(body);
        return;
    }
    if (x->local) {
        local_reply(x, status, body, 0);
        return;
    }
    set_head(x, status, content_type);
    buf_move(&x->sending, body);
    x->started = x->ending = true;
    x->req->res.content_length = x->sending.len;
    x->last_ms = (int64_t)uv_now(x->server->loop);
    answer_is_made(x, x->sending.len);
    h2o_start_response(x->req, &x->generator);
    give_piece(x);
}

/* OpenAI's `type` and default `code` of an error with this status. */
static const char *error_type(int status)
{
    return status == 429   ? "rate_limit_error"
           : status == 503 ? "service_unavailable_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

static const char *error_code(const struct http_error *error, int status)
{
    if (error->openai_code)
        return error->openai_code;
    switch (status) {
    case 401:
        return "invalid_api_key";
    case 404:
        return "not_found";
    case 405:
        return "method_not_allowed";
    case 413:
    case 431:
        return "request_too_large";
    case 429:
        return "rate_limit_exceeded";
    case 503:
        return "service_unavailable";
    default:
        return error->code == Q_UNSUPPORTED ? "not_supported" : NULL;
    }
}

static int error_status(const struct http_error *error)
{
    return error->status ? error->status : q_code_http(error->code);
}

static void add_or_null(struct buf *out, const char *s)
{
    if (s)
        buf_add_json_str(out, s, strlen(s));
    else
        buf_add_str(out, "null");
}

/* Anthropic's. */
static const char *other_error_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } all[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
        {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
        {503, "overloaded_error"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status)
            return all[i].type;
    return status < 500 ? "invalid_request_error" : "api_error";
}

void http_error_body(struct buf *out, const struct http_error *error)
{
    const int status = error_status(error);
    const bool other = error->form == HTTP_ERROR_ANTHROPIC;
    buf_add_str(out,
                other ? "{\"type\":\"error\",\"error\":{\"message\":" : "{\"error\":{\"message\":");
    add_or_null(out, error->message);
    buf_printf(
        out, ",\"type\":\"%s\",\"param\":", other ? other_error_type(status) : error_type(status));
    add_or_null(out, error->param);
    buf_add_str(out, ",\"code\":");
    add_or_null(out, error_code(error, status));
    buf_add_str(out, "}}");
}

void http_reply_error(struct http_exchange *x, const struct http_error *error)
{
    struct buf body = BUF_INIT;
    int status = error_status(error);
    if (x->over || x->broken || x->started)
        return;
    if (x->local) {
        http_error_body(&body, error);
        local_reply(x, status, &body, error->retry_after_s);
        return;
    }
    if (error->retry_after_s) {
        char *text = h2o_mem_alloc_pool(&x->req->pool, 16);
        int n = snprintf(text, 16, "%u", error->retry_after_s);
        h2o_add_header_by_str(&x->req->pool, &x->req->res.headers, H2O_STRLIT("retry-after"), 0,
                              NULL, text, (size_t)n);
    }
    if (status == 401)
        h2o_add_header_by_str(&x->req->pool, &x->req->res.headers, H2O_STRLIT("www-authenticate"),
                              0, NULL, H2O_STRLIT("Bearer"));
    http_error_body(&body, error);
    http_reply(x, status, "application/json", &body);
}

void http_stream_start(struct http_exchange *x)
{
    x->stream = true;
}

bool http_stream_started(const struct http_exchange *x)
{
    return x->started;
}

static void start(struct http_exchange *x)
{
    h2o_req_t *r = x->req;
    x->started = true;
    set_head(x, 200, "text/event-stream; charset=utf-8");
    h2o_add_header(&r->pool, &r->res.headers, H2O_TOKEN_CACHE_CONTROL, NULL,
                   H2O_STRLIT("no-cache"));
    h2o_add_header_by_str(&r->pool, &r->res.headers, H2O_STRLIT("x-accel-buffering"), 0, NULL,
                          H2O_STRLIT("no"));
    h2o_start_response(r, &x->generator);
}

/* The client does not read. The memory is released now; the owner is notified at the next tick of
 * the ping timer, not from inside its own write. */
static void give_up(struct http_exchange *x)
{
    metric_add(METRIC_SLOW_CLIENTS, 1);
    x->broken = true;
    buf_release(&x->pending);
    h2o_socket_t *sock = x->req->conn->callbacks->get_socket(x->req->conn);
    if (x->req->version < 0x200 && sock)
        shutdown(h2o_socket_get_fd(sock),
                 SHUT_RDWR); /* fails the current write, which ends the request */
}

void http_stream_write(struct http_exchange *x, const char *data, size_t n)
{
    Q_ASSERT(!x->local);
    if (x->over || x->broken || x->ending || n == 0)
        return;
    buf_add(&x->pending, data, n);
    if (x->pending.failed) {
        give_up(x);
        return;
    }
    if (!x->started)
        start(x);
    flush(x);
}

void http_stream_end(struct http_exchange *x)
{
    if (x->over || x->broken || x->ending)
        return;
    x->ending = true;
    answer_is_made(x, x->pending.len + x->sending.len);
    if (!x->started)
        start(x);
    flush(x);
}
