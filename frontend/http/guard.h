/* SPDX-License-Identifier: Apache-2.0 */
/* guard - checks between a connection and h2o's HTTP/1 parser.
 *
 * Each head is checked (http/head.h) before h2o reads it. In an invalid head the headers that
 * announce a body are removed, so that the handler is called at once and responds 400; a head
 * beyond h2o's limits is replaced by a valid one and answered with 431; a head that h2o cannot
 * parse is replaced too (400). A head without access loses its body likewise: the handler responds
 * 401 before a byte of the body is kept. A connection beyond the limits of connections, and a
 * request beyond the limit of bytes, get an answer that h2o does not know of. The framing of a
 * chunked body (http/chunks.h) is checked before h2o decodes it. A response sent while the client
 * still sends is followed by a lingering close: closing with unread bytes would make the kernel
 * send a reset, which can destroy the response.
 * Threads: the loop's. */
#ifndef QUIRE_FRONTEND_HTTP_GUARD_H
#define QUIRE_FRONTEND_HTTP_GUARD_H
#include <h2o.h>
#include <stdbool.h>

struct body_bytes;
struct connections;
struct guard_connection;
struct guard { /* of one server */
    uv_loop_t *loop;
    h2o_accept_ctx_t *accept;
    h2o_socket_cb h2o_read; /* h2o's read callback */
    /* May the sender of this head send a body? */
    bool (*has_access)(const void *ctx, const char *head, size_t n);
    const void *ctx;
    struct connections *connections; /* counts those of the server */
    struct body_bytes *bytes;
    struct tls_relay *relay; /* NULL: no TLS */
    SSL_CTX *tls;            /* of the next connection */
    struct guard_connection *unhooked;
    uv_prepare_t hooks;
    unsigned n_linger;
    unsigned n_new; /* connections without a request so far */
    int64_t refused_log_ms;
    uint64_t n_unlogged; /* refusals since */
};
/* connections, bytes, relay and tls are set by the caller afterwards. */
void guard_init(struct guard *g, uv_loop_t *loop, h2o_accept_ctx_t *accept,
                bool (*has_access)(const void *ctx, const char *head, size_t n), const void *ctx);
/* Accept the next connection of a listener. False: out of memory; until a later call accepts it,
 * libuv takes no other one. */
bool guard_accept(struct guard *g, uv_stream_t *listener);
/* Accept the connections in the listener's queue, n_max at most: the kernel resets those in it when
 * the listener is closed. */
void guard_accept_queued(struct guard *g, uv_stream_t *listener, unsigned n_max);
/* The connection has sent a request. */
void guard_note_request(h2o_req_t *req);
/* The error in the head of this request or in the framing of its body; NULL: none. *large: it
 * exceeds h2o's limits (431). If the body could not be checked completely, the connection ends with
 * this request. */
const char *guard_fault(h2o_req_t *req, bool *large);
/* The request had a body that is not read, because its head gives no access; after guard_fault. */
bool guard_body_unread(h2o_req_t *req);
/* The response is sent; the request had `n_request` bytes of the socket's input. */
void guard_answered(h2o_req_t *req, size_t n_request);
/* Close the connection after the response while the client may still be sending. */
void guard_linger(struct guard *g, h2o_req_t *req);

#endif
