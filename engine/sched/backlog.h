/* SPDX-License-Identifier: Apache-2.0 */
/* backlog - the requests that wait, and whose turn is next.
 *
 * Two kinds wait. Returned ones have run and lost their place (preempted, worker lost); they stand
 * in one list, in the order in which they were first admitted. New ones stand in one list per
 * tenant, first come first served. Next is, by the first of these that decides:
 *
 *     1. the better priority (policy priority only; else all are equal)
 *     2. a returned one
 *     3. the tenant with the least charge: tokens computed for it, divided by its weight
 *     4. the earlier arrival
 *
 * Charge: what is to be computed of a prompt when it is admitted (not what the prefix cache has),
 * an output token when it is settled, so that work counts and not requests. A tenant that begins to
 * wait is lifted to the least charge of those that wait already: being idle saves nothing up. With
 * one tenant the order is plain FCFS. Why not rounds with a quantum (the textbook's deficit round
 * robin): how much a request decodes is known only afterwards, so deficits go far below zero, and
 * turning rounds until one is above again finds the same tenant as looking for the least charge,
 * later. Design: engine/sched/README.md.
 * Threads: the scheduler's loop only. Allocates nothing after backlog_init. */
#ifndef QUIRE_ENGINE_SCHED_BACKLOG_H
#define QUIRE_ENGINE_SCHED_BACKLOG_H
#include <stdbool.h>
#include <stdint.h>
#include "engine/sched/request.h"

#define BACKLOG_WEIGHT_MAX 1000u
#define BACKLOG_CHARGE_ONE 65536u /* charge of a token for a tenant of weight 1 */

struct tenant {
    uint64_t id;
    uint32_t weight;             /* 1 … BACKLOG_WEIGHT_MAX */
    uint32_t n_open;             /* its requests, waiting or running */
    uint64_t charge;             /* wraps after 2^48 tokens: nine years at a million a second */
    struct request_list waiting; /* new ones, by priority, then arrival */
    bool named;                  /* id is in the index */
    uint32_t chain;              /* the next of its bucket */
    uint32_t prev, next;         /* among the idle ones, or those with waiting requests */
};

struct tenant_list {
    uint32_t first, last, n;
};
struct backlog {
    struct request_table *requests; /* borrowed */
    bool by_priority;
    uint32_t n;                   /* all that wait */
    struct request_list returned; /* by priority, then turn */
    struct tenant *tenants;       /* [n_tenant] one for each request there may be */
    uint32_t *buckets;            /* [n_bucket] tenant + 1, 0 = empty */
    uint32_t n_tenant, n_bucket;
    struct tenant_list contending; /* with waiting requests */
    struct tenant_list idle;       /* nothing open; the longest idle is forgotten first */
    uint64_t charge_floor;         /* of the tenant admitted last, before it was charged */
    uint64_t n_turn;
};
/* clang-format off */
#define TENANT_LIST_INIT {REQUEST_NONE, REQUEST_NONE, 0}
#define BACKLOG_INIT {.requests = NULL, .tenants = NULL}
/* clang-format on */

/* Errors: Q_NO_MEMORY. */
FALLIBLE backlog_init(struct backlog *b, struct request_table *requests, bool by_priority,
                      struct q_err *e);
void backlog_release(struct backlog *b);

/* A new request (in no list) waits; its tenant has it open until backlog_leave. The last weight
 * given counts. Cost: O(1); with priorities O(requests of the tenant that it overtakes). */
void backlog_enter(struct backlog *b, uint32_t i_request, uint64_t tenant_id, uint32_t weight);
/* Whose turn it is; REQUEST_NONE when nobody waits. Of the new ones only those with at most
 * n_token_max tokens are looked at; nobody overtakes the first returned one by that: when it has
 * more, the answer is REQUEST_NONE. Cost: O(tenants with waiting requests), with a limit O(n). */
uint32_t backlog_first(const struct backlog *b, uint32_t n_token_max);
/* It is admitted: it waits no more. A new one gets its turn number, and its tenant is charged
 * n_token. */
void backlog_take(struct backlog *b, uint32_t i_request, uint32_t n_token);
/* One that ran waits again, at its place among the returned ones. Cost: O(those before it): none
 * when the last of the running ones goes first. */
void backlog_return(struct backlog *b, uint32_t i_request);
/* It waits no more and will not run. */
void backlog_remove(struct backlog *b, uint32_t i_request);
/* A request that does not wait is over. */
void backlog_leave(struct backlog *b, uint32_t i_request);
/* n_token more were computed for a request. */
void backlog_charge(struct backlog *b, uint32_t i_request, uint32_t n_token);
/* Who makes room when the queue is full and tenant_id has one more: the last new request of the
 * tenant with the most, if that has more than tenant_id would have; else REQUEST_NONE. Not one that
 * has output already (a replay). */
uint32_t backlog_last_of_many(const struct backlog *b, uint64_t tenant_id);
uint32_t backlog_n_tenant(const struct backlog *b); /* with open requests */
/* Lists, order and counts; Q_ASSERTs. */
void backlog_check(const struct backlog *b);

#endif
