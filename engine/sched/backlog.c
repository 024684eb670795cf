/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table with chaining finds a tenant by its id. A tenant is idle (it has no open request;
 * its charge is kept until another tenant needs the entry), contending (it has new requests that
 * wait), or in no list (all its requests run or were returned). The table has as many tenant
 * entries as requests, so a request always gets one.
 *
 * No tenant starves: the tenant with the least charge keeps that rank until one of its requests is
 * admitted, because the charges of all other tenants only grow, and a tenant that starts to wait is
 * raised to at least that charge and has the later arrival. The tenant's own charge grows only
 * while its requests run, and these requests end. */
#include "engine/sched/backlog.h"
#include "common/mem.h"

static struct tenant *tenant_of(const struct backlog *b, const struct request *r)
{
    return &b->tenants[r->tenant];
}

static void list_append(struct backlog *b, struct tenant_list *l, uint32_t i)
{
    struct tenant *t = &b->tenants[i];
    t->prev = l->last;
    t->next = REQUEST_NONE;
    if (l->last == REQUEST_NONE)
        l->first = i;
    else
        b->tenants[l->last].next = i;
    l->last = i;
    l->n++;
}

static void list_remove(struct backlog *b, struct tenant_list *l, uint32_t i)
{
    struct tenant *t = &b->tenants[i];
    if (t->prev == REQUEST_NONE)
        l->first = t->next;
    else
        b->tenants[t->prev].next = t->next;
    if (t->next == REQUEST_NONE)
        l->last = t->prev;
    else
        b->tenants[t->next].prev = t->prev;
    l->n--;
}

enum q_code backlog_init(struct backlog *b, struct request_table *requests, bool by_priority,
                         struct q_err *e)
{
    *b = (struct backlog)BACKLOG_INIT;
    b->returned = (struct request_list)REQUEST_LIST_INIT;
    b->contending = b->idle = (struct tenant_list)TENANT_LIST_INIT;
    b->requests = requests;
    b->by_priority = by_priority;
    b->n_tenant = requests->n_item;
    for (b->n_bucket = 16; b->n_bucket < b->n_tenant;)
        b->n_bucket *= 2;
    b->tenants = q_calloc(b->n_tenant, sizeof *b->tenants);
    b->buckets = q_calloc(b->n_bucket, sizeof *b->buckets);
    if (!b->tenants || !b->buckets) {
        backlog_release(b);
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory for %u tenants", requests->n_item);
    }
    for (uint32_t i = 0; i < b->n_tenant; i++) {
        b->tenants[i].waiting = (struct request_list)REQUEST_LIST_INIT;
        list_append(b, &b->idle, i);
    }
    return Q_OK;
}

void backlog_release(struct backlog *b)
{
    q_free(b->tenants);
    q_free(b->buckets);
    *b = (struct backlog)BACKLOG_INIT;
}

static uint32_t *bucket(const struct backlog *b, uint64_t id)
{
    uint64_t h = (id ^ id >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &b->buckets[(uint32_t)(h >> 32) & (b->n_bucket - 1)];
}

static uint32_t find_tenant(const struct backlog *b, uint64_t id)
{
    uint32_t i = *bucket(b, id);
    while (i && b->tenants[i - 1].id != id)
        i = b->tenants[i - 1].chain;
    return i ? i - 1 : REQUEST_NONE;
}

static void unname(struct backlog *b, uint32_t i)
{
    uint32_t *at = bucket(b, b->tenants[i].id);
    while (*at != i + 1)
        at = &b->tenants[*at - 1].chain;
    *at = b->tenants[i].chain;
    b->tenants[i].named = false;
}

/* The tenant's entry, taken out of the idle ones. */
static uint32_t open_tenant(struct backlog *b, uint64_t id)
{
    uint32_t i = find_tenant(b, id);
    if (i != REQUEST_NONE && b->tenants[i].n_open)
        return i;
    if (i == REQUEST_NONE) {
        i = b->idle.first;
        Q_ASSERT(i != REQUEST_NONE);
        if (b->tenants[i].named)
            unname(b, i);
        struct tenant *t = &b->tenants[i];
        t->id = id;
        t->named = true;
        t->charge = 0;
        t->chain = *bucket(b, id);
        *bucket(b, id) = i + 1;
    }
    list_remove(b, &b->idle, i);
    return i;
}

/* It begins to wait: time in which it did not is no credit. */
static void contend(struct backlog *b, uint32_t i)
{
    uint64_t least = b->contending.n ? UINT64_MAX : b->charge_floor;
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next)
        if (b->tenants[j].charge < least)
            least = b->tenants[j].charge;
    if (b->tenants[i].charge < least)
        b->tenants[i].charge = least;
    list_append(b, &b->contending, i);
}

void backlog_enter(struct backlog *b, uint32_t i_request, uint64_t tenant_id, uint32_t weight)
{
    struct request *r = &b->requests->items[i_request];
    uint32_t i = open_tenant(b, tenant_id);
    struct tenant *t = &b->tenants[i];
    Q_ASSERT(weight >= 1 && weight <= BACKLOG_WEIGHT_MAX);
    r->tenant = i;
    r->admission_seq = 0;
    if (!b->by_priority)
        r->priority = 0;
    t->weight = weight;
    t->n_open++;
    if (t->waiting.n == 0)
        contend(b, i);
    uint32_t before = t->waiting.last;
    while (before != REQUEST_NONE && b->requests->items[before].priority > r->priority)
        before = b->requests->items[before].prev;
    request_list_insert(b->requests, &t->waiting, before, i_request);
    b->n++;
    b->n_token += r->n_token;
}

/* Does a come before b? Both are the first of their lists. */
static bool goes_before(const struct backlog *b, const struct request *x, const struct request *y)
{
    if (x->priority != y->priority)
        return x->priority < y->priority;
    if (x->admission_seq ||
        y->admission_seq) /* one list has admitted ones, so at most one of them has none */
        return x->admission_seq != 0;
    uint64_t x_charge = tenant_of(b, x)->charge, y_charge = tenant_of(b, y)->charge;
    return x_charge != y_charge ? x_charge < y_charge : x->arrival < y->arrival;
}

uint32_t backlog_first(const struct backlog *b, uint32_t n_token_max)
{
    const struct request *items = b->requests->items;
    uint32_t best = b->returned.first;
    int32_t held = INT32_MAX; /* the most urgent priority of those: it is not overtaken */
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next) {
        uint32_t i = b->tenants[j].waiting.first;
        while (i != REQUEST_NONE && items[i].n_token > n_token_max)
            i = items[i].next;
        if (i != REQUEST_NONE && b->tenants[j].held)
            held = items[i].priority < held ? items[i].priority : held;
        else if (i != REQUEST_NONE &&
                 (best == REQUEST_NONE || goes_before(b, &items[i], &items[best])))
            best = i;
    }
    if (best != REQUEST_NONE && (items[best].n_token > n_token_max || items[best].priority > held))
        return REQUEST_NONE;
    return best;
}

static void take_new(struct backlog *b, uint32_t i_request)
{
    const struct request *r = &b->requests->items[i_request];
    struct tenant *t = tenant_of(b, r);
    request_list_remove(b->requests, &t->waiting, i_request);
    if (t->waiting.n == 0)
        list_remove(b, &b->contending, r->tenant);
}

void backlog_take(struct backlog *b, uint32_t i_request, uint32_t n_token)
{
    struct request *r = &b->requests->items[i_request];
    b->n--;
    b->n_token -= r->n_token;
    if (r->admission_seq) {
        request_list_remove(b->requests, &b->returned, i_request);
        return;
    }
    take_new(b, i_request);
    if (tenant_of(b, r)->charge > b->charge_floor)
        b->charge_floor = tenant_of(b, r)->charge;
    backlog_charge(b, i_request, n_token);
    r->admission_seq = ++b->n_admission;
}

void backlog_return(struct backlog *b, uint32_t i_request)
{
    const struct request *items = b->requests->items;
    uint32_t before = REQUEST_NONE, next = b->returned.first;
    Q_ASSERT(items[i_request].admission_seq);
    while (next != REQUEST_NONE && request_before(&items[next], &items[i_request])) {
        before = next;
        next = items[next].next;
    }
    request_list_insert(b->requests, &b->returned, before, i_request);
    b->n++;
    b->n_token += items[i_request].n_token;
}

void backlog_remove(struct backlog *b, uint32_t i_request)
{
    if (b->requests->items[i_request].admission_seq)
        request_list_remove(b->requests, &b->returned, i_request);
    else
        take_new(b, i_request);
    b->n--;
    b->n_token -= b->requests->items[i_request].n_token;
}

void backlog_leave(struct backlog *b, uint32_t i_request)
{
    uint32_t i = b->requests->items[i_request].tenant;
    Q_ASSERT(b->tenants[i].n_open > 0);
    if (--b->tenants[i].n_open == 0)
        list_append(b, &b->idle, i);
}

void backlog_charge(struct backlog *b, uint32_t i_request, uint32_t n_token)
{
    struct tenant *t = tenant_of(b, &b->requests->items[i_request]);
    t->charge += (uint64_t)n_token * BACKLOG_CHARGE_ONE / t->weight;
}

uint32_t backlog_last_of_many(const struct backlog *b, uint64_t tenant_id)
{
    uint32_t own = find_tenant(b, tenant_id), most = REQUEST_NONE;
    uint32_t n = own == REQUEST_NONE ? 1 : b->tenants[own].waiting.n + 1;
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next)
        if (b->tenants[j].waiting.n > n) {
            most = j;
            n = b->tenants[j].waiting.n;
        }
    uint32_t i = most == REQUEST_NONE ? REQUEST_NONE : b->tenants[most].waiting.last;
    while (i != REQUEST_NONE && b->requests->items[i].n_token > b->requests->items[i].n_prompt)
        i = b->requests->items[i].prev;
    return i;
}

uint32_t backlog_n_tenant(const struct backlog *b)
{
    return b->n_tenant - b->idle.n;
}

/* One list of a tenant: by priority, then arrival, none admitted. */
static uint32_t check_tenant(const struct backlog *b, uint32_t j, uint64_t *n_token)
{
    const struct tenant *t = &b->tenants[j];
    const struct request *last = NULL;
    uint32_t n = 0;
    Q_ASSERT(t->named && find_tenant(b, t->id) == j && t->n_open >= t->waiting.n);
    for (uint32_t i = t->waiting.first; i != REQUEST_NONE; i = b->requests->items[i].next, n++) {
        const struct request *r = &b->requests->items[i];
        Q_ASSERT(r->state == REQUEST_WAITING && r->tenant == j && r->admission_seq == 0);
        Q_ASSERT(!last || last->priority < r->priority ||
                 (last->priority == r->priority && last->arrival < r->arrival));
        *n_token += r->n_token;
        last = r;
    }
    Q_ASSERT(n == t->waiting.n);
    return n;
}

void backlog_check(const struct backlog *b)
{
    uint32_t n = 0, n_contending = 0, n_open = 0;
    uint64_t n_token = 0;
    const struct request *last = NULL;
    for (uint32_t j = b->contending.first; j != REQUEST_NONE; j = b->tenants[j].next) {
        Q_ASSERT(b->tenants[j].waiting.n > 0);
        n += check_tenant(b, j, &n_token);
        n_contending++;
    }
    Q_ASSERT(n_contending == b->contending.n);
    for (uint32_t i = b->returned.first; i != REQUEST_NONE; i = b->requests->items[i].next, n++) {
        const struct request *r = &b->requests->items[i];
        Q_ASSERT(r->state == REQUEST_WAITING && r->admission_seq);
        Q_ASSERT(!last || request_before(last, r));
        n_token += r->n_token;
        last = r;
    }
    Q_ASSERT(n == b->n && n_token == b->n_token);
    for (uint32_t j = 0; j < b->n_tenant; j++)
        n_open += b->tenants[j].n_open;
    Q_ASSERT(n_open + b->requests->free.n == b->requests->n_item);
}
