/* SPDX-License-Identifier: Apache-2.0 */
/* local - an exchange without a connection, for a program that puts requests to the handlers itself
 * (quire run-batch): the same code answers them, and the answer comes to a function.
 *
 * The handler of a route takes the exchange as it would take one of the server's. It has no headers
 * and cannot stream: a body that asks for a stream must not be given to it.
 * Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_HTTP_LOCAL_H
#define QUIRE_FRONTEND_HTTP_LOCAL_H
#include "frontend/http/exchange.h"

struct http_local {
    struct http_text path, body; /* borrowed until http_local_free */
    /* The answer, once, perhaps before the handler returns; *body may be moved out. The exchange
     * must not be freed inside. retry_after_s: 0 = none. */
    void (*reply)(void *ctx, int status, struct buf *body, uint32_t retry_after_s);
    void *ctx;
};
/* NULL: no memory. *l is copied. */
struct http_exchange *http_local_new(const struct http_local *l);
/* After the answer, or before it: then the request is given up (`gone` is called). NULL is fine. */
void http_local_free(struct http_exchange *x);

#endif
