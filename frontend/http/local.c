/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/local.h"
#include <inttypes.h>
#include "common/log.h"
#include "common/mem.h"
#include "frontend/http/http_internal.h"

#define WARN_EVERY_MS 5000

struct local_exchange { /* the exchange is the first member: local_of */
    struct http_exchange x;
    struct http_local local;
};

struct http_exchange *http_local_new(const struct http_local *l)
{
    struct local_exchange *o = q_calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->local = *l;
    o->x.local = &o->local;
    exchange_choose_id(&o->x);
    return &o->x;
}

void http_local_free(struct http_exchange *x)
{
    if (!x)
        return;
    Q_ASSERT(x->local);
    x->broken = true;
    exchange_notify_gone(x);
    q_free(x);
}

void local_reply(struct http_exchange *x, int status, struct buf *body, uint32_t retry_after_s)
{
    x->started = x->over = true;
    x->local->reply(x->local->ctx, status, body, retry_after_s);
    buf_release(body);
}

/* There are no response headers, so the warning is logged; limited, because every line of a large
 * file may cause the same one. */
void local_warn(const struct http_exchange *x, const char *text)
{
    static int64_t last_ms;
    static uint64_t n_skipped;
    if (!log_ratelimit(&last_ms, &n_skipped, WARN_EVERY_MS))
        return;
    log_warning("request %s: %s (%" PRIu64 " such lines omitted before)", x->id, text, n_skipped);
    n_skipped = 0;
}
