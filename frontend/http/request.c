/* SPDX-License-Identifier: Apache-2.0 */
/* The path of a request from h2o to the handler of its route: normalized path, preflights, keys,
 * limits, compressed bodies. */
#include <arpa/inet.h>
#include "common/cpus.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/http/http_internal.h"
#include "frontend/http/unpack.h"

#define UNPACK_HERE 1024  /* bytes; longer bodies are decompressed on a thread */
#define MAX_AGE     "600" /* seconds that a browser may cache a preflight, as in vLLM */
#define EXPOSED     "X-Request-Id, Retry-After, X-Quire-Warning"

struct handler {
    h2o_handler_t super;
    struct http_server *server;
};

static bool same(h2o_iovec_t v, const char *s)
{
    return v.len == strlen(s) && memcmp(v.base, s, v.len) == 0;
}

/* The part behind the authority of a path in absolute form (RFC 9112 3.2.2); NULL: another form. */
static const char *behind_authority(h2o_iovec_t path)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (path.len < n || strncasecmp(path.base, schemes[i], n) != 0)
            continue;
        const char *at = path.base + n, *end = path.base + path.len;
        while (at < end && *at != '/' && *at != '?')
            at++;
        return at;
    }
    return NULL;
}

/* The path in the form of the routes: without scheme and authority, and without a trailing
 * slash. */
static void simplify_path(h2o_req_t *req)
{
    const char *at = behind_authority(req->path);
    if (at) {
        size_t n = req->path.len - (size_t)(at - req->path.base);
        bool rooted = n && *at == '/';
        h2o_iovec_t path = {h2o_mem_alloc_pool(&req->pool, n + 1), n + !rooted};
        *path.base = '/';
        memcpy(path.base + !rooted, at, n);
        req->path = path;
        req->path_normalized = h2o_url_normalize_path(&req->pool, path.base, path.len,
                                                      &req->query_at, &req->norm_indexes);
    }
    while (req->path_normalized.len > 1 &&
           req->path_normalized.base[req->path_normalized.len - 1] == '/')
        req->path_normalized.len--;
}

static bool path_matches(h2o_iovec_t path, const char *pattern)
{
    const char *star = strchr(pattern, '*');
    if (!star)
        return same(path, pattern);
    const size_t n_before = (size_t)(star - pattern), n_behind = strlen(star + 1);
    return path.len > n_before + n_behind && !memcmp(path.base, pattern, n_before) &&
           !memcmp(path.base + path.len - n_behind, star + 1, n_behind);
}

static bool method_matches(h2o_iovec_t method, const char *of_route)
{
    return same(method, of_route) || (same(method, "HEAD") && !strcmp(of_route, "GET"));
}

/* The route for the request. NULL: none; `allow` gets the methods of the path, "" if the path does
 * not exist. */
static const struct http_route *find_route(const struct http_server *s, h2o_iovec_t path,
                                           h2o_iovec_t method, char allow[64])
{
    size_t n = 0;
    *allow = 0;
    for (size_t i = 0; path.base && i < s->set.n_route; i++) {
        const struct http_route *r = &s->set.routes[i];
        if (!path_matches(path, r->path))
            continue;
        if (method_matches(method, r->method))
            return r;
        n += (size_t)snprintf(allow + n, n < 64 ? 64 - n : 0, "%s%s%s", n ? ", " : "", r->method,
                              strcmp(r->method, "GET") ? "" : ", HEAD");
    }
    return NULL;
}

static h2o_iovec_t header_of(const h2o_req_t *req, const char *name)
{
    ssize_t i = h2o_find_header_by_str(&req->headers, name, strlen(name), SIZE_MAX);
    return i == -1 ? h2o_iovec_init(NULL, 0) : req->headers.entries[i].value;
}

static void add_header(h2o_req_t *req, const char *name, const char *value, size_t n)
{
    h2o_iovec_t kept = h2o_strdup(&req->pool, value, n);
    h2o_add_header_by_str(&req->pool, &req->res.headers, name, strlen(name), 0, NULL, kept.base,
                          kept.len);
}

/* The administration endpoints are allowed for explicitly listed origins only. */
static bool origin_allowed(const struct http_server *s, const h2o_req_t *req, h2o_iovec_t origin)
{
    char allow[64];
    h2o_iovec_t wanted = header_of(req, "access-control-request-method");
    bool preflight = same(req->method, "OPTIONS") && wanted.base;
    const struct http_route *r =
        find_route(s, req->path_normalized, preflight ? wanted : req->method, allow);
    if (r && r->auth == HTTP_ADMIN && cors_any(&s->set.cors.origins))
        return false;
    return cors_origin(&s->set.cors, origin.base, origin.len);
}

void request_share(const struct http_server *s, h2o_req_t *req)
{
    const struct cors *c = &s->set.cors;
    h2o_iovec_t origin = header_of(req, "origin");
    bool varies = cors_varies(c) || header_of(req, "cookie").base;
    if (!c->origins.n)
        return;
    if (varies)
        add_header(req, "vary", H2O_STRLIT("Origin"));
    if (!origin.base || !origin_allowed(s, req, origin))
        return;
    if (varies)
        add_header(req, "access-control-allow-origin", origin.base, origin.len);
    else
        add_header(req, "access-control-allow-origin", H2O_STRLIT("*"));
    if (c->credentials)
        add_header(req, "access-control-allow-credentials", H2O_STRLIT("true"));
    add_header(req, "access-control-expose-headers", H2O_STRLIT(EXPOSED));
}

/* A preflight: a browser asks which requests a page of another origin may send. It contains no
 * key. */
static bool answer_preflight(struct http_server *s, struct http_exchange *x)
{
    h2o_req_t *req = x->req;
    h2o_iovec_t origin = header_of(req, "origin"), headers;
    h2o_iovec_t method = header_of(req, "access-control-request-method");
    if (!same(req->method, "OPTIONS") || !origin.base || !method.base || !s->set.cors.origins.n)
        return false;
    headers = header_of(req, "access-control-request-headers");
    const struct cors_asked asked = {origin.base, method.base, headers.base,
                                     origin.len,  method.len,  headers.len};
    const char *refused =
        origin_allowed(s, req, origin) ? cors_refused(&s->set.cors, &asked) : "origin";
    struct buf list = BUF_INIT, body = BUF_INIT;
    char text[128];
    cors_methods(&s->set.cors, &list);
    add_header(req, "access-control-allow-methods", buf_str(&list), list.len);
    add_header(req, "access-control-max-age", H2O_STRLIT(MAX_AGE));
    buf_reset(&list);
    cors_headers(&s->set.cors, &asked, &list);
    if (list.len)
        add_header(req, "access-control-allow-headers", buf_str(&list), list.len);
    buf_release(&list);
    snprintf(text, sizeof text,
             "this server does not allow this %s in cross-origin requests (--allowed-%s)",
             refused ? refused : "",
             !refused || !strcmp(refused, "headers") ? "headers"
             : !strcmp(refused, "method")            ? "methods"
                                                     : "origins");
    if (refused) {
        http_reply_error(x, &(struct http_error){.code = Q_INVALID, .message = text});
        return true;
    }
    buf_add_str(&body, "OK");
    http_reply(x, 200, "text/plain; charset=utf-8", &body);
    return true;
}

/* Is the client on this machine? */
static bool is_local(h2o_req_t *req)
{
    struct sockaddr_storage from;
    const socklen_t n = req->conn->callbacks->get_peername(req->conn, (struct sockaddr *)&from);
    return n && !net_is_open((struct sockaddr *)&from);
}

/* The name in a Host header or an authority: without port. */
static h2o_iovec_t host_name(h2o_iovec_t host)
{
    size_t n = host.len;
    while (n && host.base[n - 1] >= '0' && host.base[n - 1] <= '9')
        n--;
    return n && host.base[n - 1] == ':' ? h2o_iovec_init(host.base, n - 1) : host;
}

static bool is_address(h2o_iovec_t host)
{
    char text[64];
    struct in6_addr any; /* large enough for both */
    const bool is_v6 = host.len > 2 && host.base[0] == '[' && host.base[host.len - 1] == ']';
    const size_t n = is_v6 ? host.len - 2 : host.len;
    if (n >= sizeof text)
        return false;
    memcpy(text, host.base + is_v6, n);
    text[n] = 0;
    return inet_pton(is_v6 ? AF_INET6 : AF_INET, text, &any) == 1;
}

/* Is the request meant for this server? A page of another site whose name has been given this
 * machine's address has that name in Host. */
static bool host_allowed(const struct http_server *s, const struct http_route *r, h2o_req_t *req)
{
    const struct cors_list *hosts = &s->set.allowed_hosts;
    const h2o_iovec_t host = host_name(req->authority);
    if (!hosts->n && (!r || r->auth != HTTP_ADMIN))
        return true;
    for (size_t i = 0; i < hosts->n; i++)
        if (!strcmp(hosts->items[i], "*") || (strlen(hosts->items[i]) == host.len &&
                                              !strncasecmp(hosts->items[i], host.base, host.len)))
            return true;
    return is_address(host) || (host.len == 9 && !strncasecmp(host.base, "localhost", host.len));
}

static bool authorized(const struct http_server *s, const struct http_route *r,
                       const struct http_exchange *x)
{
    if (r && (r->auth == HTTP_PUBLIC || (r->auth == HTTP_METRICS && s->set.public_metrics)))
        return true;
    return s->keys.n == 0 || exchange_key(x);
}

/* May the sender use an administration endpoint? Without keys: a program of this machine. */
static bool allowed(const struct http_server *s, const struct http_route *r,
                    const struct http_exchange *x)
{
    if (!r || r->auth != HTTP_ADMIN || s->set.enable_steering)
        return true;
    return s->keys.n ? exchange_key(x)->admin : is_local(x->req);
}

static void reply_no_route(struct http_exchange *x, const char *allow)
{
    h2o_req_t *req = x->req;
    char text[512];
    struct http_error error = {.code = *allow ? Q_METHOD : Q_NOT_FOUND, .message = text};
    int n_path = req->path_normalized.len < 300 ? (int)req->path_normalized.len : 300;
    int n_method = req->method.len < 32 ? (int)req->method.len : 32;
    if (*allow) {
        add_header(req, "allow", allow, strlen(allow));
        snprintf(text, sizeof text, "%.*s accepts %s, not %.*s", n_path, req->path_normalized.base,
                 allow, n_method, req->method.base);
    } else {
        snprintf(text, sizeof text, "unknown endpoint: %.*s %.*s", n_method, req->method.base,
                 n_path, req->path_normalized.base);
    }
    http_reply_error(x, &error);
}

/* Browsers send other content types across origins without a preflight, but not application/json,
 * and they always send Origin. So a request without body and without Origin comes from no page. */
static bool is_json(const struct http_exchange *x)
{
    if (!http_body(x).n && !http_header(x, "content-type").n && !http_header(x, "origin").n)
        return true;
    static const char want[] = "application/json";
    struct http_text type = http_header(x, "content-type");
    size_t n = sizeof want - 1;
    return type.n >= n && strncasecmp(type.data, want, n) == 0 &&
           (type.n == n || type.data[n] == ';' || type.data[n] == ' ');
}

struct unpacking { /* of one body, on a thread */
    uv_work_t work;
    struct http_server *server;
    struct http_exchange *x; /* NULL after the exchange ended */
    const struct http_route *route;
    enum coding coding;
    struct buf in, out;
    struct q_err error;
};

static void finish_unpacking(struct unpacking *u)
{
    struct http_exchange *x = u->x;
    if (x && u->error.code != Q_OK) {
        http_reply_error(x,
                         &(struct http_error){.code = u->error.code, .message = u->error.message});
    } else if (x) {
        buf_move(&x->unpacked, &u->out);
        x->body = (struct http_text){buf_str(&x->unpacked), x->unpacked.len};
        if (body_bytes_hold(&x->server->bytes, &x->n_held, x->unpacked.len))
            u->route->handle(u->server->set.app, x);
        else
            http_reply_error(x, &(struct http_error){
                                    .code = Q_NO_SPACE,
                                    .message = "the requests in the server's memory exceed its "
                                               "limit (--max-total-body-bytes); retry later",
                                    .retry_after_s = 1,
                                });
    }
    buf_release(&u->in);
    buf_release(&u->out);
    q_free(u);
}

static void unpack_now(struct unpacking *u)
{
    enum q_code rc = unpack(&u->out, u->coding, buf_str(&u->in), u->in.len, &u->error);
    (void)rc; /* kept in u->error */
}

static void unpack_on_thread(uv_work_t *work)
{
    cpus_run_later();
    unpack_now(work->data);
}

static void after_unpacking(uv_work_t *work, int status)
{
    struct unpacking *u = work->data;
    (void)status;
    if (u->x)
        http_on_gone(u->x, NULL, NULL);
    finish_unpacking(u);
}

static void on_unpacking_gone(void *ctx)
{
    struct unpacking *u = ctx;
    u->x = NULL;
}

static void handle_packed(struct http_exchange *x, const struct http_route *r, enum coding coding)
{
    struct unpacking *u = q_calloc(1, sizeof *u);
    if (!u) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_NO_MEMORY,
                                .message = "out of memory for the request",
                            });
        return;
    }
    *u = (struct unpacking){.server = x->server, .x = x, .route = r, .coding = coding};
    u->out.max = x->server->set.body_max;
    u->work.data = u;
    buf_add(&u->in, x->body.data, x->body.n); /* the request may end before the thread */
    if (buf_check(&u->in, "the request body", &u->error) != Q_OK || u->in.len <= UNPACK_HERE) {
        if (u->error.code == Q_OK)
            unpack_now(u);
        finish_unpacking(u);
        return;
    }
    http_on_gone(x, on_unpacking_gone, u);
    uv_queue_work(x->server->loop, &u->work, unpack_on_thread, after_unpacking);
}

static void handle(struct http_exchange *x, const struct http_route *r)
{
    struct http_text packed = http_header(x, "content-encoding");
    enum coding coding = coding_read(packed.data, packed.n);
    if (!x->body.n || coding == CODING_NONE) {
        r->handle(x->server->set.app, x);
    } else if (coding == CODING_UNKNOWN) {
        add_header(x->req, "accept-encoding", H2O_STRLIT(UNPACK_ACCEPTED));
        http_reply_error(
            x, &(struct http_error){
                   .code = Q_MEDIA_TYPE,
                   .message = "Content-Encoding: not supported; accepted are " UNPACK_ACCEPTED,
               });
    } else {
        handle_packed(x, r, coding);
    }
}

static void refuse_head(struct http_exchange *x, const char *fault, bool large)
{
    char text[160];
    snprintf(text, sizeof text, "the request is %s: %s", large ? "too large" : "not valid HTTP",
             fault);
    guard_linger(&x->server->guard, x->req);
    http_reply_error(
        x, &(struct http_error){.status = large ? 431 : 0, .code = Q_INVALID, .message = text});
}

static enum http_slot slot_of(const struct http_route *r)
{
    return r->auth == HTTP_PUBLIC    ? SLOT_NONE
           : r->auth == HTTP_METRICS ? SLOT_METRICS
                                     : SLOT_REQUEST;
}

/* Respond with an error if the request must not reach its handler; false: no error. */
static bool refused(struct http_exchange *x, const struct http_route *r, const char *allow)
{
    const struct http_server *s = x->server;
    struct http_error error = {.code = Q_OK};
    if (!authorized(s, r, x))
        error = (struct http_error){
            .code = Q_UNAUTHORIZED,
            .message = "missing or wrong API key: expected the header "
                       "\"Authorization: Bearer KEY\" or \"X-Api-Key: "
                       "KEY\"",
        };
    else if (!host_allowed(s, r, x->req))
        error = (struct http_error){
            .code = Q_FORBIDDEN,
            .message = "the request is for a host that --allowed-hosts does not name",
        };
    else if (!allowed(s, r, x))
        error = (struct http_error){
            .code = Q_FORBIDDEN,
            .message =
                s->keys.n
                    ? "this API key has no access to administration endpoints: --api-key-file "
                      "marks keys as admin, --enable-steering opens these endpoints to all keys"
                    : "administration endpoints are for programs of this machine, or need an API "
                      "key marked admin (--api-key-file); --enable-steering opens them to all",
        };
    else if (r && !server_has_slot(s, slot_of(r), exchange_key(x)))
        error = (struct http_error){
            .code = Q_NO_SPACE,
            .message = s->n_open < s->set.open_max
                           ? "this API key has too many open requests (its share of "
                             "--max-open-requests); retry later"
                           : "too many open requests; retry later",
            .retry_after_s = server_retry_after(s),
        };
    else if (r && !strcmp(r->method, "POST") && !is_json(x))
        error = (struct http_error){
            .code = Q_MEDIA_TYPE,
            .message = "Content-Type must be application/json",
        };
    if (error.code != Q_OK || !r) {
        x->body = (struct http_text){"", 0};
        body_bytes_drop(x->req);
    }
    if (error.code != Q_OK)
        http_reply_error(x, &error);
    else if (!r)
        reply_no_route(x, allow);
    return error.code != Q_OK || !r;
}

/* "close" ends the connection, also beside keep-alive, which has precedence in h2o. */
static void note_close(h2o_req_t *req)
{
    ssize_t at = -1;
    while ((at = h2o_find_header(&req->headers, H2O_TOKEN_CONNECTION, at)) != -1) {
        h2o_iovec_t v = req->headers.entries[at].value;
        if (h2o_contains_token(v.base, v.len, H2O_STRLIT("close"), ','))
            req->http1_is_persistent = 0;
    }
}

static int on_request(h2o_handler_t *self, h2o_req_t *req)
{
    struct http_server *s = ((struct handler *)self)->server;
    char allow[64];
    guard_note_request(req);
    simplify_path(req);
    note_close(req);
    const struct http_route *r = find_route(s, req->path_normalized, req->method, allow);
    struct http_exchange *x = exchange_new(s, req);
    bool large = false;
    const char *fault = guard_fault(req, &large);
    if (!fault && guard_body_unread(req))
        guard_linger(&s->guard, req);
    if (fault)
        refuse_head(x, fault, large);
    else if (!answer_preflight(s, x) && !refused(x, r, allow) && r) {
        if (r->auth == HTTP_ADMIN && strcmp(r->method, "GET") != 0)
            log_info("%s %s: used with %s (request %s)", r->method, r->path, http_key_name(x),
                     http_request_id(x));
        server_take_slot(x, slot_of(r));
        handle(x, r);
    }
    return 0;
}

void request_handle(struct http_server *s, h2o_pathconf_t *path)
{
    struct handler *h = (struct handler *)h2o_create_handler(path, sizeof *h);
    h->super.on_req = on_request;
    h->server = s;
}
