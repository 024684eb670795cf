/* SPDX-License-Identifier: Apache-2.0 */
/* h2o exports what resets a stream, and the layout of its connections, in http2_internal.h; the
 * layout is that of one version of its library. */
#include "frontend/http/body_bytes.h"

#include <assert.h>
#include <h2o/http2.h>

#include <h2o/http2_internal.h>
#include <h2o/version.h>
#include "common/metrics.h"

static_assert(H2O_LIBRARY_VERSION_MAJOR == 0 && H2O_LIBRARY_VERSION_MINOR == 13,
              "another version of h2o: compare http2_internal.h, handle_data_frame and "
              "h2o_http2_stream_reset with what is used here");

#define LOOK_EVERY_MS   20 /* while the loop runs */
#define RESETS_PER_LOOK 1024
#define SMALL_BYTES_MAX ((size_t)4 << 20) /* of incomplete small bodies that are not looked at */

/* Is there room for one of n bytes, which are counted? Small ones have as much again. */
static bool has_room(const struct body_bytes *b, size_t n_all, size_t n)
{
    return n_all <= b->max || (n <= BODY_BYTES_FREE && n_all - b->max <= b->max);
}

bool body_bytes_hold(struct body_bytes *b, size_t *held, size_t n)
{
    b->n_http1 += n - *held;
    *held = n;
    return has_room(b, b->n_http1 + b->n_http2, n);
}

void body_bytes_drop(h2o_req_t *req)
{
    if (req->version < 0x200)
        return;
    h2o_http2_stream_t *s = H2O_STRUCT_FROM_MEMBER(h2o_http2_stream_t, req, req);
    if (s->_req_body)
        h2o_buffer_dispose(&s->_req_body);
    req->entity = h2o_iovec_init(NULL, 0);
}

static h2o_http2_conn_t *connection_of(h2o_req_t *req)
{
    return (h2o_http2_conn_t *)req->conn;
}

static void reset(h2o_http2_stream_t *s, int error)
{
    h2o_http2_conn_t *c = connection_of(&s->req);
    h2o_http2__encode_rst_stream_frame(&c->_write.buf, s->stream_id, -error);
    h2o_http2_conn_request_write(c);
    h2o_http2_stream_reset(c, s);
    metric_add(METRIC_HTTP_4XX, 1);
}

struct victims { /* of one look: resetting a stream changes what is looked at */
    struct body_bytes *bytes;
    h2o_http2_stream_t *streams[RESETS_PER_LOOK];
    bool known[RESETS_PER_LOOK]; /* it has access */
    size_t n;
    size_t n_small; /* bytes of small bodies that are incomplete */
};

static int look_at_request(h2o_req_t *req, void *ctx)
{
    struct victims *v = ctx;
    struct body_bytes *b = v->bytes;
    h2o_http2_stream_t *s = H2O_STRUCT_FROM_MEMBER(h2o_http2_stream_t, req, req);
    const size_t n = s->_req_body ? s->_req_body->size : 0;
    const bool arrives = s->state == H2O_HTTP2_STREAM_STATE_RECV_BODY;
    if (arrives && n <= BODY_BYTES_FREE)
        v->n_small += n;
    if (arrives && n && (n > BODY_BYTES_FREE || b->n_small > SMALL_BYTES_MAX) &&
        v->n < RESETS_PER_LOOK && connection_of(req)->state < H2O_HTTP2_CONN_STATE_IS_CLOSING) {
        const bool known = b->has_access(b->ctx, req);
        if (!known || !has_room(b, b->n_http1 + b->n_http2 + n, n)) {
            v->known[v->n] = known;
            v->streams[v->n++] = s;
            return 0;
        }
    }
    b->n_http2 += n;
    return 0;
}

static void on_look(uv_prepare_t *look)
{
    struct body_bytes *b = look->data;
    static struct victims v;
    const uint64_t now = uv_now(look->loop);
    if (now - b->looked_ms < LOOK_EVERY_MS)
        return;
    b->looked_ms = now;
    b->n_http2 = 0;
    v.bytes = b;
    v.n = v.n_small = 0;
    H2O_HTTP2_CALLBACKS.foreach_request(b->h2o, look_at_request, &v);
    b->n_small = v.n_small;
    for (size_t i = 0; i < v.n; i++)
        reset(v.streams[i],
              v.known[i] ? H2O_HTTP2_ERROR_REFUSED_STREAM : H2O_HTTP2_ERROR_ENHANCE_YOUR_CALM);
}

void body_bytes_init(struct body_bytes *b, h2o_context_t *h2o, size_t max,
                     bool (*has_access)(const void *ctx, const h2o_req_t *req), const void *ctx)
{
    *b = (struct body_bytes){.max = max, .h2o = h2o, .has_access = has_access, .ctx = ctx};
    b->look.data = b;
    uv_prepare_init(h2o->loop, &b->look);
    uv_prepare_start(&b->look, on_look);
    uv_unref((uv_handle_t *)&b->look);
}
