/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/local.h"
#include "common/mem.h"
#include "frontend/http/inside.h"

struct local_exchange { /* the exchange first: local_of */
    struct http_exchange x;
    struct http_local local;
};

struct http_exchange *http_local_new(const struct http_local *l)
{
    struct local_exchange *o = q_calloc(1, sizeof(*o));
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
