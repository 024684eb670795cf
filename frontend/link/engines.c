/* SPDX-License-Identifier: Apache-2.0 */
/* A link reports a change in the middle of its work; what follows from it for generations is done
 * by engines_settle, before the loop waits again. */
#include "frontend/link/engines.h"

#include <string.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "frontend/link/adapter_list.h"
#include "frontend/link/engines_internal.h"

#define ALL             UINT64_MAX
#define SETTLE_EVERY_MS 100 /* while nothing changes: one that waits may fit elsewhere by now */

static bool is_up(const struct link *l)
{
    return l->state == LINK_UP || l->state == LINK_DRAINING;
}

FALLIBLE engines_check(const char *const *addresses, uint32_t n, struct q_err *e)
{
    struct address read;
    if (n > ENGINES_MAX)
        return q_fail(e, Q_INVALID, "%u engines, expected at most %u", n, ENGINES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        if (address_parse(&read, addresses[i], e))
            return e->code;
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(addresses[i], addresses[j]))
                return q_fail(e, Q_INVALID, "%s is given twice", addresses[i]);
    }
    return Q_OK;
}

FALLIBLE engines_init(struct engines *g, const struct engines_config *c, struct q_err *e)
{
    Q_ASSERT(c->n);
    memset(g, 0, sizeof *g);
    if (engines_check(c->addresses, c->n, e))
        return e->code;
    g->set = *c;
    g->n = c->n;
    for (uint32_t i = 0; i < g->n; i++) {
        struct engine *to = &g->all[i];
        to->set = g;
        to->at = i;
        if (g->n > 1)
            snprintf(to->name, sizeof to->name, " at %s", c->addresses[i]);
    }
    return g->n > 1 ? affinity_new(&g->affinity, e) : Q_OK;
}

void engines_release(struct engines *g)
{
    affinity_free(g->affinity);
    buf_release(&g->info.adapters);
}

/* Adapters of `from` that `to` does not have. Engines mostly have the same list. */
static void add_adapters(struct buf *to, const struct buf *from)
{
    struct adapter_entry a, known;
    if (to->len == from->len && !memcmp(buf_str(to), buf_str(from), to->len))
        return;
    for (size_t at = 0; adapter_list_next(from, &at, &a);)
        if (!adapter_list_find(to, a.name, &known))
            buf_add(to, a.name, (size_t)(a.fingerprint + strlen(a.fingerprint) + 1 - a.name));
}

static void least(uint32_t *to, uint32_t value)
{
    *to = value < *to ? value : *to;
}

static void join(struct link_engine *to, const struct link_engine *from)
{
    least(&to->max_model_len, from->max_model_len);
    least(&to->max_num_seqs, from->max_num_seqs);
    least(&to->max_num_reqs, from->max_num_reqs);
    least(&to->credit, from->credit);
    least(&to->sleep_level, from->sleep_level);
    to->item_credit = from->item_credit < to->item_credit ? from->item_credit : to->item_credit;
    to->paused = to->paused && from->paused;
    to->pausing = to->pausing && from->pausing;
    to->refusing = to->refusing && from->refusing;
    add_adapters(&to->adapters, &from->adapters);
}

/* Set g->info, of the engines that are up or, if there is none, of all that ever were. */
static void combine(struct engines *g)
{
    struct buf adapters = g->info.adapters;
    bool any_up = false, first = true;
    for (uint32_t i = 0; i < g->n; i++)
        any_up = any_up || is_up(g->all[i].link);
    buf_reset(&adapters);
    g->info = (struct link_engine){.adapters = adapters};
    for (uint32_t i = 0; i < g->n; i++) {
        const struct link *l = g->all[i].link;
        if (!l->engine.instance || (any_up && !is_up(l)))
            continue;
        if (first) {
            g->info = l->engine;
            g->info.adapters = adapters;
            buf_add(&g->info.adapters, buf_str(&l->engine.adapters), l->engine.adapters.len);
        } else {
            join(&g->info, &l->engine);
        }
        first = false;
    }
}

static void warn_of_fingerprint(const struct engine *c)
{
    const struct engines *g = c->set;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct link *other = g->all[i].link;
        if (i == c->at || !is_up(other) ||
            !strcmp(other->engine.fingerprint, c->link->engine.fingerprint))
            continue;
        log_warning("link%s: its fingerprint %s differs from %s of the engine%s: an answer that "
                    "has begun does not go on with the other one if its engine is lost",
                    c->name, c->link->engine.fingerprint, other->engine.fingerprint,
                    g->all[i].name);
        return;
    }
}

static void on_change(void *ctx)
{
    struct engine *c = ctx;
    struct engines *g = c->set;
    if (!c->link) /* it is being made */
        return;
    g->is_unsettled = true;
    c->asked = false;
    if (c->link->state == LINK_UP && c->instance != c->link->engine.instance) {
        c->instance = c->link->engine.instance;
        if (g->affinity)
            affinity_forget(g->affinity, c->at);
        warn_of_fingerprint(c);
    }
    combine(g);
    if (g->set.on_change)
        g->set.on_change(g->set.ctx);
}

static void on_heartbeat(void *ctx)
{
    struct engine *c = ctx;
    struct engines *g = c->set;
    bool waits = false;
    c->asked = false;
    combine(g);
    for (uint32_t i = 0; i < g->n; i++)
        waits = waits || g->all[i].asked;
    if (!waits && g->set.on_heartbeat)
        g->set.on_heartbeat(g->set.ctx);
}

static void on_command_done(void *ctx, const struct msg_command_done *m)
{
    const struct engine *c = ctx;
    if (c->set->set.on_command_done)
        c->set->set.on_command_done(c->set->set.ctx, c->at, m);
}

static void on_stream_resumed(void *ctx, const struct msg_stream_resumed *m)
{
    const struct engine *c = ctx;
    if (c->set->set.on_stream_resumed)
        c->set->set.on_stream_resumed(c->set->set.ctx, c->at, m);
}

static void give(struct engines *g, struct generation *f, const struct engine *from,
                 const struct engine *to)
{
    affinity_add(g->affinity, &g->keys, to->at);
    if (f->request)
        f->request->link = to->link;
    link_move(from->link, f, to->link, g->n_prefill);
}

/* A request of several generations stays: they belong together, and some may have room. */
static bool on_full(void *ctx, struct generation *f)
{
    struct engine *c = ctx, *to;
    struct engines *g = c->set;
    f->refused_by |= (uint64_t)1 << c->at;
    if (g->n == 1 || (f->request && f->request->n != 1))
        return false;
    to = engines_choose_next(g, f, c, ~f->refused_by, true);
    if (!to)
        return false;
    give(g, f, c, to);
    link_pump(to->link);
    return true;
}

/* Of the engines beside it, one is there or may come. */
static bool has_others(void *ctx)
{
    const struct engine *c = ctx;
    const struct engines *g = c->set;
    for (uint32_t i = 0; i < g->n; i++)
        if (i != c->at && g->all[i].link->state != LINK_REFUSED && !link_is_away(g->all[i].link))
            return true;
    return false;
}

struct link_config engines_link_config(struct engines *g, uint32_t i)
{
    struct link_config c = g->set.link;
    c.address = g->set.addresses[i];
    c.name = g->all[i].name;
    c.totals = g->n > 1 ? &g->totals : NULL;
    c.on_change = on_change;
    c.on_heartbeat = on_heartbeat;
    c.on_command_done = on_command_done;
    c.on_stream_resumed = on_stream_resumed;
    c.on_full = on_full;
    c.has_others = has_others;
    c.ctx = &g->all[i];
    return c;
}

static struct engine *engine_of(struct engines *g, const struct link *l)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (g->all[i].link == l)
            return &g->all[i];
    return NULL;
}

/* Where the other generations of its request are, or went. */
static struct engine *engine_of_request(struct engines *g, const struct generation *f)
{
    struct link *l = f->request ? f->request->link : NULL;
    return l && l->state == LINK_UP ? engine_of(g, l) : NULL;
}

/* With the others of its request, unless that engine cannot take it. None goes while `from` still
 * computes others of the request, nor one that was lost with two engines. */
static struct engine *next_for(struct engines *g, const struct generation *f,
                               const struct engine *from)
{
    const struct engine *with = engine_of_request(g, f);
    struct engine *to = NULL;
    if ((f->was_lost && f->is_moved) ||
        (f->request && f->request->link == from->link && f->request->n_submitted))
        return NULL;
    if (with)
        to = engines_choose_next(g, f, from, (uint64_t)1 << with->at, false);
    return to ? to : engines_choose_next(g, f, from, ALL, false);
}

/* begun: those that an engine has accepted, else the others. link_move puts the former at the head,
 * so the last one goes first. */
static uint32_t leave(struct engines *g, const struct engine *from, bool begun)
{
    const struct generation_list *list = &from->link->waiting;
    uint32_t n = 0;
    for (struct generation *f = begun ? list->last : list->first, *next; f; f = next) {
        next = begun ? f->prev : f->next;
        const struct engine *to = (f->taken || f->emitted.n) == begun ? next_for(g, f, from) : NULL;
        if (!to)
            continue;
        f->refused_by = 0;
        give(g, f, from, to);
        n++;
    }
    return n;
}

void engines_settle(struct engines *g)
{
    const int64_t now = clock_ms();
    uint32_t n = 0;
    if (g->n == 1 || (!g->is_unsettled && now - g->settled_ms < SETTLE_EVERY_MS))
        return;
    g->is_unsettled = false;
    g->settled_ms = now;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct engine *from = &g->all[i];
        uint32_t n_gone = 0;
        if (from->link->state != LINK_UP && from->link->waiting.n)
            n_gone = leave(g, from, true) + leave(g, from, false);
        if (n_gone)
            log_info("link%s: %u open requests go on with other engines", from->name, n_gone);
        n += n_gone;
    }
    for (uint32_t i = 0; i < g->n && n; i++)
        link_pump(g->all[i].link);
}

uint32_t engines_n(const struct engines *g)
{
    return g->n;
}

struct link *engines_link(const struct engines *g, uint32_t i)
{
    return g->all[i].link;
}

const char *engines_name(const struct engines *g, uint32_t i)
{
    return g->all[i].name;
}

/* The link of engines_state. */
static const struct link *best_link(const struct engines *g)
{
    static const int order[] = {
        [LINK_UP] = 0,
        [LINK_DRAINING] = 1,
        [LINK_CONNECTING] = 2,
        [LINK_REFUSED] = 3,
    };
    const struct link *best = g->all[0].link;
    for (uint32_t i = 1; i < g->n; i++)
        if (order[g->all[i].link->state] < order[best->state])
            best = g->all[i].link;
    return best;
}

enum link_state engines_state(const struct engines *g)
{
    return best_link(g)->state;
}

const char *engines_reason(const struct engines *g)
{
    return best_link(g)->reason;
}

const char *engines_code(const struct engines *g)
{
    return link_code(best_link(g));
}

bool engines_hang(const struct engines *g)
{
    return g->n == 1 && link_hangs(g->all[0].link);
}

const struct link_engine *engines_info(const struct engines *g)
{
    return &g->info;
}

FALLIBLE engines_open(struct engines *g, struct generation *f, struct q_err *e)
{
    struct engine *to = &g->all[0];
    if (g->n > 1) {
        const struct engine *with = engine_of_request(g, f);
        const struct link *before = f->n_begun && f->request ? f->request->link : NULL;
        const uint64_t fit = before ? engines_that_go_on(g, f, before) : ALL;
        to = engines_choose(g, f, with ? (uint64_t)1 << with->at : fit);
        f->n_prefill = g->n_prefill;
    }
    if (g->affinity)
        affinity_add(g->affinity, &g->keys, to->at);
    if (f->request)
        f->request->link = to->link;
    return link_open(to->link, f, e);
}

void engines_close(struct engines *g, struct generation *f)
{
    link_close(f->link ? f->link : g->all[0].link, f);
}

void engines_end(struct engines *g, const char *message)
{
    for (uint32_t i = 0; i < g->n; i++)
        link_end(g->all[i].link, message);
}

bool engines_ask(struct engines *g)
{
    bool any = false;
    for (uint32_t i = 0; i < g->n; i++) {
        g->all[i].asked = link_ask(g->all[i].link);
        any = any || g->all[i].asked;
    }
    return any;
}

FALLIBLE engines_need_all(const struct engines *g, struct q_err *e)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (!is_up(g->all[i].link))
            return q_fail(e, Q_UNAVAILABLE, "the engine%s is not available: %s", g->all[i].name,
                          g->all[i].link->reason);
    return Q_OK;
}

FALLIBLE engines_reset_prefix_cache(struct engines *g, const char *reason, struct q_err *e)
{
    enum q_code rc = engines_need_all(g, e);
    for (uint32_t i = 0; i < g->n && !rc; i++) {
        rc = link_reset_prefix_cache(g->all[i].link, reason, e);
        if (!rc && g->affinity)
            affinity_forget(g->affinity, i);
    }
    return rc;
}
