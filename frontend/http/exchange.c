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
 * server watches the sockets for hang-ups with its own epoll (server.c), which calls
 * exchange_hung_up. HTTP/2 connections are always read and need no such check. */
#include <openssl/rand.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "common/metrics.h"
#include "frontend/http/head.h"
#include "frontend/http/http_internal.h"

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
    flush(x);
}

static bool id_acceptable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'z') &&
            !(s[i] >= 'A' && s[i] <= 'Z') && !strchr("-_.:", s[i]))
            return false;
    return n > 0 && n <= HTTP_ID_MAX;
}

static void choose_id(struct http_text given, char id[HTTP_ID_MAX + 1])
{
    if (id_acceptable(given.data, given.n)) {
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
    choose_id(http_header(x, "x-request-id"), x->id);
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
    choose_id(http_header(&x, "x-request-id"), id);
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

struct http_exchange *exchange_new(struct http_server *s, h2o_req_t *req, bool public)
{
    struct http_exchange *x = h2o_mem_alloc_shared(&req->pool, sizeof *x, on_dispose);
    *x = (struct http_exchange){
        .generator = {on_proceed, NULL},
        .req = req,
        .server = s,
        .public = public,
        .body = {req->entity.base, req->entity.len},
        .n_request = request_size(req),
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
    s->n_open += !public;
    metric_set(METRIC_OPEN_REQUESTS, s->n_open);
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

void exchange_ping(struct http_exchange *x, int64_t now_ms)
{
    if (x->broken) {
        exchange_notify_gone(x);
        return;
    }
    const uint32_t ping_ms = x->server->set.ping_ms; /* 0: never */
    if (!x->stream || x->ending || x->busy || !ping_ms || now_ms - x->last_ms < ping_ms)
        return;
    http_stream_write(x, ": ping\n\n", 8);
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

struct http_text http_header(const struct http_exchange *x, const char *name)
{
    if (x->local)
        return (struct http_text){"", 0};
    ssize_t i = h2o_find_header_by_str(&x->req->headers, name, strlen(name), SIZE_MAX);
    if (i == -1)
        return (struct http_text){"", 0};
    const h2o_iovec_t *v = &x->req->headers.entries[i].value;
    return (struct http_text){v->base, v->len};
}

/* OpenAI's clients send Authorization, Anthropic's X-Api-Key; one known key is sufficient. */
const struct api_key *exchange_key(const struct http_exchange *x)
{
    struct http_text header = http_header(x, "authorization"), plain = http_header(x, "x-api-key");
    if (x->local)
        return NULL;
    const struct api_key *key = api_keys_find(&x->server->keys, header.data, header.n);
    return key ? key : api_keys_find_plain(&x->server->keys, plain.data, plain.n);
}

uint32_t http_key_weight(const struct http_exchange *x)
{
    const struct api_key *key = exchange_key(x);
    return key ? key->weight : 1;
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
    x->started = x->over = x->ending = x->busy = true;
    x->req->res.content_length = x->sending.len;
    h2o_start_response(x->req, &x->generator);
    h2o_iovec_t v = h2o_iovec_init(x->sending.data, x->sending.len);
    h2o_send(x->req, &v, v.len ? 1 : 0, H2O_SEND_STATE_FINAL);
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

void http_error_body(struct buf *out, const struct http_error *error)
{
    int status = error_status(error);
    buf_add_str(out, "{\"error\":{\"message\":");
    add_or_null(out, error->message);
    buf_printf(out, ",\"type\":\"%s\",\"param\":", error_type(status));
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
    if (!x->started)
        start(x);
    flush(x);
}
