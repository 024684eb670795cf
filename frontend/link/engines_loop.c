/* SPDX-License-Identifier: Apache-2.0 */
/* The part of struct engines in the loop: links with sockets, and a prepare handle that settles
 * what changed before the loop waits. */
#include "common/mem.h"
#include "frontend/link/engines_internal.h"

struct engines_loop {
    struct engines *set;
    uv_prepare_t prepare;
};

static void on_prepare(uv_prepare_t *prepare)
{
    const struct engines_loop *o = prepare->data;
    engines_settle(o->set);
}

FALLIBLE engines_new(struct engines **out, uv_loop_t *loop, const struct engines_config *c,
                     struct q_err *e)
{
    struct engines *g = q_calloc(1, sizeof *g);
    struct engines_loop *o = q_calloc(1, sizeof *o);
    enum q_code rc = Q_OK;
    *out = NULL;
    if (!g || !o)
        rc = q_fail(e, Q_NO_MEMORY, "link: out of memory");
    else
        rc = engines_init(g, c, e);
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        const struct link_config each = engines_link_config(g, i);
        rc = link_new(&g->all[i].link, loop, &each, e);
    }
    if (rc) {
        q_free(o);
        engines_free(g);
        return rc;
    }
    o->set = g;
    o->prepare.data = o;
    g->loop = o;
    uv_prepare_init(loop, &o->prepare);
    uv_prepare_start(&o->prepare, on_prepare);
    *out = g;
    return Q_OK;
}

static void on_closed(uv_handle_t *h)
{
    q_free(h->data);
}

void engines_free(struct engines *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n; i++)
        link_free(g->all[i].link);
    if (g->loop)
        uv_close((uv_handle_t *)&g->loop->prepare, on_closed);
    engines_release(g);
    q_free(g);
}
