/* SPDX-License-Identifier: Apache-2.0 */
/* What every answer passes: a browser's permission to read it, and OpenAI's body for the errors
 * that h2o answers before any handler runs (a body beyond the limit, a broken head). Those are
 * text/plain, ours never are. */
#include "common/metrics.h"
#include "frontend/http/http_internal.h"

struct filter {
    h2o_filter_t super;
    struct http_server *server;
};
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

static bool by_h2o(const h2o_req_t *req)
{
    ssize_t at = h2o_find_header(&req->res.headers, H2O_TOKEN_CONTENT_TYPE, SIZE_MAX);
    const h2o_iovec_t *type = at == -1 ? NULL : &req->res.headers.entries[at].value;
    return req->res.status >= 400 && type && type->len >= 10 &&
           !memcmp(type->base, "text/plain", 10);
}

static void rewrite(struct http_server *s, h2o_req_t *req, h2o_ostream_t ***slot)
{
    struct buf body = BUF_INIT;
    char text[128];
    if (req->res.status == 413)
        snprintf(text, sizeof text,
                 "the request body exceeds the limit of %zu bytes (--max-body-bytes)",
                 s->set.body_max);
    else
        snprintf(text, sizeof text, "the request is not valid HTTP");
    http_error_body(&body, &(struct http_error){.status = req->res.status, .message = text});
    struct rewrite *r = (struct rewrite *)h2o_add_ostream(req, sizeof *r, *slot);
    r->super.do_send = rewrite_send;
    r->body = h2o_strdup(&req->pool, buf_str(&body), body.len);
    req->res.content_length = body.len;
    h2o_set_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE,
                   H2O_STRLIT("application/json"), 1);
    metric_add(req->res.status >= 500 ? METRIC_HTTP_5XX : METRIC_HTTP_4XX, 1);
    buf_release(&body);
    *slot = &r->super.next;
}

static void on_setup_ostream(h2o_filter_t *self, h2o_req_t *req, h2o_ostream_t **slot)
{
    struct http_server *s = ((struct filter *)self)->server;
    bool early = by_h2o(req);
    if (early) {
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
