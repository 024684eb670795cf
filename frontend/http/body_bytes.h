/* SPDX-License-Identifier: Apache-2.0 */
/* body_bytes - the bytes of requests that a server holds in memory, and their limit.
 *
 * A request is held from its first byte to the end of its answer; of one that is refused nothing
 * is held. HTTP/1 requests are counted as their connection reads (guard.c). HTTP/2 bodies are kept
 * by h2o, which shows no request before its body is complete: so all HTTP/2 streams are looked at
 * before the loop waits, every 20 ms at most. A stream that has sent more than BODY_BYTES_FREE and
 * has no access, or is too much for the limit, is reset. Requests of at most BODY_BYTES_FREE have
 * as much room again, so that large ones keep no small one out. Without a key the answer to a small
 * request is 401 and no reset, unless small ones that are incomplete have 4 MiB together: then
 * those without access are reset too.
 * Threads: the loop's. */
#ifndef QUIRE_FRONTEND_HTTP_BODY_BYTES_H
#define QUIRE_FRONTEND_HTTP_BODY_BYTES_H
#include <h2o.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define BODY_BYTES_FREE ((size_t)64 << 10)

struct body_bytes {
    size_t max;
    size_t n_http1, n_http2; /* held; of HTTP/2 at the last look */
    size_t n_small;          /* of incomplete small HTTP/2 bodies at the last look */
    h2o_context_t *h2o;
    bool (*has_access)(const void *ctx, const h2o_req_t *req);
    const void *ctx;
    uv_prepare_t look;
    uint64_t looked_ms;
};
/* max: bytes. */
void body_bytes_init(struct body_bytes *b, h2o_context_t *h2o, size_t max,
                     bool (*has_access)(const void *ctx, const h2o_req_t *req), const void *ctx);
/* A holder of *held bytes now holds n. False: there is no room for them. */
bool body_bytes_hold(struct body_bytes *b, size_t *held, size_t n);
/* The request is refused: free the body of an HTTP/2 request now, not when its answer is read. */
void body_bytes_drop(h2o_req_t *req);

#endif
