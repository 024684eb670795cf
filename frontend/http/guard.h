/* SPDX-License-Identifier: Apache-2.0 */
/* guard - what stands between a connection and h2o's HTTP/1 parser.
 *
 * Each head is looked at (http/head.h) before h2o reads it; a faulty one loses the headers that
 * announce a body, so that its handler is called at once and answers 400; one that is larger than
 * h2o can hold is exchanged for one that it can, and answered with 431; one that it cannot read too
 * (400). The framing of a chunked
 * body (http/chunks.h) is followed before h2o takes it off. And an answer that is
 * given while the client still sends is followed by a lingering close: closing with unread bytes
 * would make the kernel send a reset, which destroys the answer on its way. Threads: the loop's. */
#ifndef QUIRE_FRONTEND_HTTP_GUARD_H
#define QUIRE_FRONTEND_HTTP_GUARD_H
#include <h2o.h>
#include <stdbool.h>

struct guard_connection;
struct guard { /* of one server */
    uv_loop_t *loop;
    h2o_accept_ctx_t *accept;
    h2o_socket_cb h2o_read; /* what h2o has called when bytes came */
    struct guard_connection *unhooked;
    uv_prepare_t hooks;
    unsigned n_linger;
};
void guard_init(struct guard *g, uv_loop_t *loop, h2o_accept_ctx_t *accept);
/* Take the next connection of a listener. */
void guard_accept(struct guard *g, uv_stream_t *listener);
/* What is wrong with the head of this request or the framing of its body; NULL: nothing. *large: it
 * is more than h2o can hold (431). Where the body's bytes could not all be followed, the connection
 * ends with this request. */
const char *guard_fault(h2o_req_t *req, bool *large);
/* The request is answered; `n_request` bytes of the socket's input were its own. */
void guard_answered(h2o_req_t *req, size_t n_request);
/* After the answer the connection is closed, and the client may still be sending. */
void guard_linger(struct guard *g, h2o_req_t *req);

#endif
