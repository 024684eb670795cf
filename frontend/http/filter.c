/* SPDX-License-Identifier: Apache-2.0 */
/* A filter over all responses. It adds the CORS headers, and it replaces the bodies of errors that
 * h2o sends before a handler is called (a body beyond the limit, faulty framing): these are
 * text/plain, those of quire never are. The new body is OpenAI's error object; its message contains
 * the fault that guard.c found, or else h2o's text. */
#include "common/metrics.h"
#include "frontend/http/http_internal.h"

struct filter {
    h2o_filter_t super;
    struct http_server *server;
};
struct rewrite {
    h2o_ostream_t super;
    struct http_server *server;
};

/* The message of an error of which h2o has written `text`. */
static void explain(struct http_server *s, h2o_req_t *req, h2o_iovec_t text, char *out, size_t size)
{
    bool large = false;
    const char *fault = guard_fault(req, &large);
    if (req->res.status == 413)
        snprintf(out, size, "the request body exceeds the limit of %zu bytes (--max-body-bytes)",
                 s->set.body_max);
    else if (req->res.status == 417)
        snprintf(out, size,
                 "the header Expect is not supported with other values than "
                 "100-continue");
    else if (fault)
        snprintf(out, size, "the request is not valid HTTP: %s", fault);
    else
        snprintf(out, size, "the request is not valid HTTP: %.*s", (int)text.len, text.base);
}

/* h2o sends the text of an error in one call, and the head follows from here. */
static void rewrite_send(h2o_ostream_t *self, h2o_req_t *req, h2o_iovec_t *bufs, size_t n,
                         h2o_send_state_t state)
{
    struct rewrite *r = (struct rewrite *)self;
    struct buf body = BUF_INIT;
    char text[256];
    explain(r->server, req, n ? bufs[0] : h2o_iovec_init("", 0), text, sizeof text);
    http_error_body(&body, &(struct http_error){.status = req->res.status, .message = text});
    h2o_iovec_t whole = h2o_strdup(&req->pool, buf_str(&body), body.len);
    buf_release(&body);
    req->res.content_length = whole.len;
    h2o_ostream_send_next(self, req, &whole, 1, state);
}

static bool by_h2o(const h2o_req_t *req)
{
    ssize_t at = h2o_find_header(&req->res.headers, H2O_TOKEN_CONTENT_TYPE, SIZE_MAX);
    const h2o_iovec_t *type = at == -1 ? NULL : &req->res.headers.entries[at].value;
    return req->res.status >= 400 && type && type->len >= 10 &&
           !memcmp(type->base, "text/plain", 10);
}

static void rewrite(struct http_server *s, h2o_req_t *req, h2o_ostream_t ***slot)
{
    struct rewrite *r = (struct rewrite *)h2o_add_ostream(req, sizeof *r, *slot);
    r->super.do_send = rewrite_send;
    r->server = s;
    h2o_set_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE,
                   H2O_STRLIT("application/json"), 1);
    metric_add(req->res.status >= 500 ? METRIC_HTTP_5XX : METRIC_HTTP_4XX, 1);
    *slot = &r->super.next;
}

static void on_setup_ostream(h2o_filter_t *self, h2o_req_t *req, h2o_ostream_t **slot)
{
    struct http_server *s = ((struct filter *)self)->server;
    bool early = by_h2o(req);
    if (early) {
        req->res.reason = exchange_reason(req->res.status);
        guard_linger(&s->guard, req);
        exchange_send_id(req);
    }
    request_share(s, req);
    if (early && !(req->input.method.len == 4 && !memcmp(req->input.method.base, "HEAD", 4)))
        rewrite(s, req, &slot);
    h2o_setup_next_ostream(req, slot);
}

void filter_add(struct http_server *s, h2o_pathconf_t *path)
{
    struct filter *f = (struct filter *)h2o_create_filter(path, sizeof *f);
    f->super.on_setup_ostream = on_setup_ostream;
    f->server = s;
}
