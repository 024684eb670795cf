/* SPDX-License-Identifier: Apache-2.0 */
/* Which engine gets a generation: the best rank, and in it the fewest tokens to compute. */
#include <string.h>
#include "frontend/link/adapter_list.h"
#include "frontend/link/engines_internal.h"

/* Best first. */
enum rank {
    RANK_READY,
    RANK_FULL,   /* as many generations as it takes: it waits here */
    RANK_ASLEEP, /* asleep or paused */
    RANK_AWAY,   /* it may come back */
    RANK_LEAVING,
    RANK_LOST, /* what is opened there is refused, with the reason */
    RANKS
};

static enum rank rank_of(const struct link *l)
{
    const struct link_engine *e = &l->engine;
    switch (l->state) {
    case LINK_UP:
        return e->sleep_level || e->pausing ? RANK_ASLEEP
               : l->running.n >= e->credit  ? RANK_FULL
                                            : RANK_READY;
    case LINK_CONNECTING:
        return link_is_away(l) ? RANK_LOST : RANK_AWAY;
    case LINK_DRAINING:
        return RANK_LEAVING;
    default:
        return RANK_LOST;
    }
}

/* Tokens that it computes for others, or beside them, before this one's answer: prompts that wait,
 * and half of the output of each open request, of which the rest is as likely to be near. One that
 * fails its requests at once has none open and is no better for it. */
static double load_of(const struct engines *g, const struct link *l)
{
    double mean = 0;
    for (uint32_t i = 0; i < g->n; i++)
        mean += g->all[i].link->mean_output / g->n;
    const double n_open = (double)link_n_open(l) + l->n_others;
    return (double)l->n_prefill + (n_open / 2 + l->n_failing) * mean;
}

enum fit { FIT_NEVER, FIT_LATER, FIT_NOW };

/* Has it what the generation needs? What an engine has is known once it has been up. */
static enum fit fit_of(const struct link *l, const struct generation *f)
{
    const uint64_t n_output = f->fits_max_tokens || f->params.pools ? 0 : f->params.max_tokens;
    struct q_err none = Q_ERR_INIT;
    struct adapter_entry adapter;
    if (link_n_open(l) >= LINK_FLOWS_MAX)
        return FIT_LATER;
    if (!l->engine.instance)
        return FIT_NOW;
    if ((f->adapter && !adapter_list_find(&l->engine.adapters, f->adapter, &adapter)) ||
        (!f->counts_only && f->n_prompt + n_output > l->engine.max_model_len))
        return FIT_NEVER;
    const enum q_code rc = link_check_items(l, f, &none);
    return rc == Q_OK ? FIT_NOW : rc == Q_NO_SPACE ? FIT_LATER : FIT_NEVER;
}

struct engine *engines_choose(struct engines *g, const struct generation *f, uint64_t of)
{
    uint32_t cached[AFFINITY_ENGINES];
    struct engine *best = NULL, *any = NULL;
    enum rank best_rank = RANKS;
    double least = 0;
    affinity_keys(&g->keys, f);
    affinity_find(g->affinity, &g->keys, cached);
    /* Frontends that know nothing of a prompt begin with the same engine, if they can. */
    const uint32_t start = g->keys.n ? (uint32_t)(g->keys.keys[0] % g->n) : g->turn++ % g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        struct engine *c = &g->all[(start + i) % g->n];
        if (!(of >> c->at & 1))
            continue;
        any = any ? any : c;
        const enum fit fit = fit_of(c->link, f);
        if (fit == FIT_NEVER)
            continue;
        enum rank rank = rank_of(c->link);
        rank = fit == FIT_LATER && rank == RANK_READY ? RANK_FULL : rank;
        const double cost = load_of(g, c->link) - cached[c->at];
        if (rank > best_rank || (rank == best_rank && cost >= least))
            continue;
        best = c;
        best_rank = rank;
        least = cost;
    }
    g->n_prefill = (uint32_t)f->n_prompt - (best ? cached[best->at] : 0);
    return best ? best : any; /* which says why it cannot be served */
}

/* Are the tokens that it has those that `l` would have given? */
static bool goes_on(const struct link *from, const struct link *l, const struct generation *f)
{
    struct adapter_entry before, now;
    if (!f->emitted.n && !f->n_begun && !f->n_prompt_row)
        return true;
    if (strcmp(from->engine.fingerprint, l->engine.fingerprint) != 0)
        return false;
    return !f->adapter || (adapter_list_find(&from->engine.adapters, f->adapter, &before) &&
                           adapter_list_find(&l->engine.adapters, f->adapter, &now) &&
                           !strcmp(before.fingerprint, now.fingerprint));
}

uint64_t engines_that_go_on(const struct engines *g, const struct generation *f,
                            const struct link *from)
{
    uint64_t fit = 0;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->all[i].link == from || goes_on(from, g->all[i].link, f))
            fit |= (uint64_t)1 << i;
    return fit;
}

struct engine *engines_choose_next(struct engines *g, const struct generation *f,
                                   const struct engine *from, uint64_t of, bool awake)
{
    uint64_t fit = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct link *l = g->all[i].link;
        const enum rank rank = rank_of(l);
        const bool is_better = rank <= (awake ? RANK_FULL : RANK_ASLEEP) ||
                               (from->link->state == LINK_REFUSED && rank == RANK_AWAY);
        if (i != from->at && is_better && fit_of(l, f) == FIT_NOW)
            fit |= (uint64_t)1 << i;
    }
    fit &= engines_that_go_on(g, f, from->link);
    return fit & of ? engines_choose(g, f, fit & of) : NULL;
}
