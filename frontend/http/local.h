/* SPDX-License-Identifier: Apache-2.0 */
/* local - an exchange without a connection, for a program that calls the handlers itself (quire
 * run-batch); the response is passed to a function.
 *
 * The handler of a route uses the exchange like one of the server. It has no headers and does not
 * support streams: the body must not request one.
 * Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_HTTP_LOCAL_H
#define QUIRE_FRONTEND_HTTP_LOCAL_H
#include "frontend/http/exchange.h"

struct http_local {
    struct http_text path, body; /* borrowed until http_local_free */
    /* Called once with the response, possibly before the handler returns; *body may be moved out.
     * The exchange must not be freed inside. retry_after_s: 0 = none. */
    void (*reply)(void *ctx, int status, struct buf *body, uint32_t retry_after_s);
    void *ctx;
};
/* NULL: no memory. *l is copied. */
struct http_exchange *http_local_new(const struct http_local *l);
/* Call after the response, or before it to cancel the request (`gone` is called). NULL is fine. */
void http_local_free(struct http_exchange *x);

#endif
