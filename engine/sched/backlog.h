/* SPDX-License-Identifier: Apache-2.0 */
/* backlog - the waiting requests and their order of admission.
 *
 * There are two kinds. Returned requests have run and lost their slot (preempted, worker lost);
 * they are in one list, in the order of their first admission. New requests are in one list per
 * tenant, first come first served. The next request is determined by, in this order:
 *
 *     1. the better priority (policy priority only; else all are equal)
 *     2. returned before new
 *     3. the tenant with the least charge: tokens computed for it, divided by its weight
 *     4. the earlier arrival
 *
 * Charge: the prompt tokens to compute at admission (without prefix-cache hits) and each output
 * token when it is settled, so that work counts and not the number of requests. A tenant that
 * starts to wait is raised to the least charge of the waiting tenants: idle time earns no credit.
 * With one tenant the order is plain FCFS. Deficit round robin was rejected: the decode work of a
 * request is known only afterwards, so deficits fall far below zero, and repeated rounds find the
 * tenant with the least charge more slowly. Design: engine/sched/README.md.
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
    uint32_t n_open;             /* number of its requests, waiting or running */
    uint64_t charge;             /* wraps after 2^48 tokens: nine years at a million per second */
    struct request_list waiting; /* new requests, by priority, then arrival */
    bool named;                  /* id is in the index */
    uint32_t chain;              /* next tenant of its bucket */
    uint32_t prev, next;         /* links of the list of idle tenants or of tenants with waiting
                                  * requests */
    /* Of the step being planned (scheduler_share.c). */
    uint64_t plan;      /* number of the plan that the values are of */
    uint32_t n_wanted;  /* rows that its most urgent requests could compute */
    uint32_t n_taken;   /* rows that are in the step */
    uint32_t n_partial; /* its prompts that more steps will have rows of */
    bool held;          /* its new requests wait for the next step */
};

struct tenant_list {
    uint32_t first, last, n;
};
struct backlog {
    struct request_table *requests; /* borrowed */
    bool by_priority;
    uint32_t n;                   /* number of waiting requests */
    uint64_t n_token;             /* of these */
    struct request_list returned; /* by priority, then admission_seq */
    struct tenant *tenants;       /* [n_tenant] one for each possible request */
    uint32_t *buckets;            /* [n_bucket] tenant + 1, 0 = empty */
    uint32_t n_tenant, n_bucket;
    struct tenant_list contending; /* with waiting requests */
    struct tenant_list idle;       /* tenants without open requests; the longest idle is removed
                                    * first */
    uint64_t charge_floor;         /* of the tenant admitted last, before it was charged */
    uint64_t n_admission;
};
/* clang-format off */
#define TENANT_LIST_INIT {REQUEST_NONE, REQUEST_NONE, 0}
#define BACKLOG_INIT {.requests = NULL, .tenants = NULL}
/* clang-format on */

/* Errors: Q_NO_MEMORY. */
FALLIBLE backlog_init(struct backlog *b, struct request_table *requests, bool by_priority,
                      struct q_err *e);
void backlog_release(struct backlog *b);

/* Add a new request (in no list); it counts as open for its tenant until backlog_leave. The last
 * weight applies. Cost: O(1); with priorities O(requests of the tenant that it overtakes). */
void backlog_enter(struct backlog *b, uint32_t i_request, uint64_t tenant_id, uint32_t weight);
/* The next request; REQUEST_NONE if none waits. Only new requests with at most n_token_max tokens,
 * of tenants that are not held, are considered; one of a held tenant is overtaken by its equals in
 * priority only; the first returned request is not overtaken by that: if it has more tokens, the
 * result is REQUEST_NONE. Cost: O(tenants with waiting requests), with a limit O(n). */
uint32_t backlog_first(const struct backlog *b, uint32_t n_token_max);
/* Remove an admitted request. A new one gets its admission number, and its tenant is charged
 * n_token. */
void backlog_take(struct backlog *b, uint32_t i_request, uint32_t n_token);
/* Add a request that ran, at its position among the returned requests. Cost: O(requests before it):
 * none if the last running request is returned first. */
void backlog_return(struct backlog *b, uint32_t i_request);
/* Remove a request that will not run. */
void backlog_remove(struct backlog *b, uint32_t i_request);
/* A request that is not waiting has ended. */
void backlog_leave(struct backlog *b, uint32_t i_request);
/* Charge n_token more computed tokens to a request's tenant. */
void backlog_charge(struct backlog *b, uint32_t i_request, uint32_t n_token);
/* The request to evict if the queue is full and tenant_id adds one: the last new request of the
 * tenant with the most, if that tenant has more than tenant_id would have; else REQUEST_NONE.
 * Requests with output (a replay) are not evicted. */
uint32_t backlog_last_of_many(const struct backlog *b, uint64_t tenant_id);
uint32_t backlog_n_tenant(const struct backlog *b); /* with open requests */
/* Lists, order and counts; Q_ASSERTs. */
void backlog_check(const struct backlog *b);

#endif
