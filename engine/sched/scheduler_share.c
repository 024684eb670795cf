/* SPDX-License-Identifier: Apache-2.0 */
/* The share of a step of each tenant.
 *
 * The backlog is fair about who is admitted. That alone leaves a small tenant T in steps that are
 * full of another one's rows: each of its tokens takes as long as a chunk of a long prompt, or as
 * the decode rows of a hundred sequences. So while several tenants have rows to compute, a step has
 * no more of each than lengthens it by a share:
 *
 *     rows of U  <=  weight(U) * min over T of (n_wanted(T) + F) / weight(T)
 *
 * with F = fixed / row of row_cost.h. T's rows alone take row * (F + n_wanted(T)); each U adds at
 * most weight(U) / weight(T) times that: beside one tenant of the same weight a token of T takes at
 * most twice as long as alone, whatever the other one sends, beside k of them 1 + k times. The
 * tenant that wants least never meets its limit. Where memory limits a step, F is large and the
 * limit rarely matters; where tenants want the same, it does not matter either. If together they
 * want more rows than a step has, these are divided by weight as well. A tenant alone has no limit,
 * so nothing is lost without contention.
 *
 * Beside many tenants with a row each, that would leave a long prompt a small part of a step. So
 * the tenants that want more than the limit may have more, as long as they together take at most
 * as much time as the others, and no token of a tenant takes longer than 1 + k times its time:
 *
 *     their rows  <=  min(F + rows of the others, limit * weight of all - F - rows of the others)
 *
 * T's next request would first wait for the steps in flight, so for RETURN_US after it had rows a
 * step is planned as if T wanted one: those that T finds are short. That costs the others at most
 * half of their speed, which is what T's rows would cost them.
 *
 * Within its share a tenant's running requests come in order, decode rows first, as in the whole
 * step; the last of too many wait for the first of them to end, as they would in the queue. A
 * tenant that has used its share is held: its new requests wait, and others are admitted past them.
 * Returned requests are never held, because all admitted requests are in one order (README.md): a
 * returned one whose tenant has used its share gets one row.
 *
 * With priorities only the most urgent requests of a step are protected; the limit is for all.
 *
 * Rejected: a deficit round robin of steps, which gives each tenant whole steps in turn: weights
 * would be read once for each tenant. A fixed number of rows: it is too many for one machine and
 * too few for another. */
#include <math.h>
#include "engine/sched/scheduler_internal.h"

#define CACHE_LOOKUPS 8u /* waiting tenants whose cached prefix is looked up in a plan */
#define LEVEL_ROUNDS  4u
#define SPLIT_MAX     8u /* tenants that all have long prompts share a step; more come in order */
#define RETURN_US     1000000 /* how long after contention a tenant that has no rows is expected */

static void add_tenant(struct scheduler *s, uint32_t i_tenant, uint32_t n_row)
{
    struct tenant *t = &s->backlog.tenants[i_tenant];
    if (t->plan != s->n_plan) {
        t->plan = s->n_plan;
        t->n_wanted = t->n_taken = t->n_partial = 0;
        t->held = false;
        s->sharing[s->n_sharing++] = i_tenant;
    }
    const uint32_t room = s->config.limits.max_num_batched_tokens - t->n_wanted;
    t->n_wanted += n_row < room ? n_row : room;
}

/* Could a new request start in this step? Rows of one that cannot must not hold back others, which
 * give it room when they end. */
static bool could_start(const struct scheduler *s, const struct request *r)
{
    return !s->closed && !s->suspecting && s->backlog.returned.n == 0 && s->n_free_slot &&
           kv_blocks_for(r->n_token) + scheduler_headroom(s) <= kv_available(&s->pool);
}

/* Rows of a tenant's new requests of a priority for which there are slots; those of the first one
 * that are cached are not among them. */
static uint32_t rows_waiting(struct scheduler *s, const struct tenant *t, int32_t priority,
                             bool looks_up)
{
    const struct request *items = s->requests.items;
    struct admission admission = {.start = 0};
    uint32_t n = 0, n_slot = s->n_free_slot;
    if (looks_up)
        cache_find(s, t->waiting.first, &admission);
    for (uint32_t i = t->waiting.first; i != REQUEST_NONE && n_slot; i = items[i].next, n_slot--) {
        if (items[i].priority != priority || n >= s->config.limits.max_num_batched_tokens)
            break;
        n += items[i].n_token - (i == t->waiting.first ? admission.start : 0);
    }
    return n;
}

/* The most urgent priority of the requests that have rows. */
static int32_t best_priority(const struct scheduler *s)
{
    const struct request *items = s->requests.items;
    const struct backlog *b = &s->backlog;
    int32_t best = INT32_MAX;
    for (uint32_t i = s->running.first; i != REQUEST_NONE && best == INT32_MAX; i = items[i].next)
        if (scheduler_rows_left(&items[i]))
            best = items[i].priority;
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next) {
        const struct request *r = &items[b->tenants[j].waiting.first];
        if (r->priority < best && could_start(s, r))
            best = r->priority;
    }
    return best;
}

/* Which tenants have rows, and how many. Returns the number of those that have any. */
static uint32_t count_wanted(struct scheduler *s)
{
    const struct request *items = s->requests.items;
    const struct backlog *b = &s->backlog;
    const int32_t best = best_priority(s);
    uint32_t n_start = 0, n_lookup = 0;
    for (uint32_t i = s->running.first; i != REQUEST_NONE; i = items[i].next)
        if (scheduler_rows_left(&items[i]))
            add_tenant(s, items[i].tenant,
                       items[i].priority == best ? scheduler_rows_left(&items[i]) : 0);
    const uint32_t n_running = s->n_sharing;
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next) {
        const bool starts = could_start(s, &items[b->tenants[j].waiting.first]);
        n_start += starts && b->tenants[j].plan != s->n_plan;
        add_tenant(s, j,
                   starts ? rows_waiting(s, &b->tenants[j], best, n_lookup++ < CACHE_LOOKUPS) : 0);
    }
    return n_running + (n_start < s->n_free_slot ? n_start : s->n_free_slot);
}

/* Rows for a weight of 1 so that all tenants together want what a step has: none waits for rows
 * that another one has beyond that. */
static double fair_level(const struct scheduler *s)
{
    const double n_row = s->config.limits.max_num_batched_tokens;
    double level = 0;
    for (uint32_t round = 0; round < LEVEL_ROUNDS; round++) { /* it rises with each round */
        double left = n_row, weight = 0;
        for (uint32_t k = 0; k < s->n_sharing; k++) {
            const struct tenant *t = &s->backlog.tenants[s->sharing[k]];
            if (t->n_wanted <= level * t->weight)
                left -= t->n_wanted;
            else
                weight += t->weight;
        }
        if (weight == 0)
            return SCHEDULER_NO_SHARE;
        level = left / weight;
    }
    return level > n_row / SPLIT_MAX ? level : n_row / SPLIT_MAX;
}

/* Rows for a weight of 1 of the tenants that want more than `limit`. */
static double share_of_rest(const struct scheduler *s, double limit, double fixed)
{
    double n_other = 0, weight = 0, all = 0;
    for (uint32_t k = 0; k < s->n_sharing; k++) {
        const struct tenant *t = &s->backlog.tenants[s->sharing[k]];
        all += t->n_wanted ? t->weight : 0;
        if (t->n_wanted <= limit * t->weight)
            n_other += t->n_wanted;
        else
            weight += t->weight;
    }
    const double most = fmin(fixed + n_other, limit * all - fixed - n_other);
    return weight ? fmax(limit, most / weight) : limit;
}

void scheduler_share(struct scheduler *s, int64_t now_us)
{
    const double fixed = row_cost_fixed_rows(&s->row_cost);
    double share = SCHEDULER_NO_SHARE;
    uint32_t least = REQUEST_NONE; /* the tenant that the limit protects */
    s->n_plan++;
    s->n_sharing = 0;
    s->share = s->share_unwanted = SCHEDULER_NO_SHARE;
    const bool contended = count_wanted(s) >= 2;
    if (!contended && now_us >= s->share_until_us)
        return;
    s->share = fair_level(s);
    for (uint32_t k = 0; k < s->n_sharing; k++) {
        const struct tenant *t = &s->backlog.tenants[s->sharing[k]];
        const double most = (t->n_wanted + fixed) / t->weight;
        if (t->n_wanted && (least == REQUEST_NONE || most < share)) {
            least = s->sharing[k];
            share = most;
        }
    }
    if (contended) {
        s->share_until_us = now_us + RETURN_US;
        s->expected = least;
    } else if (s->expected == REQUEST_NONE || s->backlog.tenants[s->expected].plan == s->n_plan) {
        share = SCHEDULER_NO_SHARE; /* it is the one that is left */
    } else {
        share = (1 + fixed) / s->backlog.tenants[s->expected].weight;
    }
    s->share_unwanted = fmin(share, s->share);
    s->share = fmin(contended ? share_of_rest(s, share, fixed) : share, s->share);
}

uint32_t scheduler_share_left(const struct scheduler *s, const struct request *r)
{
    const struct tenant *t = scheduler_tenant(s, r);
    const bool counted = t->plan == s->n_plan;
    const uint32_t n_taken = counted ? t->n_taken : 0;
    const double n = (counted && t->n_wanted ? s->share : s->share_unwanted) * t->weight;
    if (n >= s->config.limits.max_num_batched_tokens)
        return UINT32_MAX;
    return n < 1 ? n_taken == 0 : (uint32_t)n > n_taken ? (uint32_t)n - n_taken : 0;
}

void scheduler_take_share(struct scheduler *s, const struct request *r, uint32_t n_row)
{
    add_tenant(s, r->tenant, 0); /* it may be new here, with a returned request */
    struct tenant *t = scheduler_tenant(s, r);
    t->n_taken += n_row;
    t->held = scheduler_share_left(s, r) == 0;
}
