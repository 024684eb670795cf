/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/request.h"
#include <string.h>
#include "common/mem.h"

enum q_code request_table_init(struct request_table *t, uint32_t n_item, struct q_err *e)
{
    *t = (struct request_table)REQUEST_TABLE_INIT;
    Q_ASSERT(n_item <= REQUESTS_MAX);
    for (t->index_size = 16; t->index_size < 2 * n_item;)
        t->index_size *= 2;
    t->items = q_calloc(n_item, sizeof *t->items);
    t->index = q_calloc(t->index_size, sizeof *t->index);
    if (!t->items || !t->index) {
        request_table_release(t);
        return q_fail(e, Q_NO_MEMORY, "scheduler: out of memory for %u requests", n_item);
    }
    t->n_item = n_item;
    for (uint32_t i = 0; i < n_item; i++)
        request_list_append(t, &t->free, i);
    return Q_OK;
}

void request_table_release(struct request_table *t)
{
    for (uint32_t i = 0; t->items && i < t->n_item; i++)
        q_free(t->items[i].memory);
    q_free(t->items);
    q_free(t->index);
    programs_release(&t->programs);
    *t = (struct request_table)REQUEST_TABLE_INIT;
}

/* A frontend numbers its requests from 1, and consecutive ids must not share buckets: Fibonacci
 * hashing, high bits. */
static uint32_t home(const struct request_table *t, uint32_t frontend_id, uint64_t req_id)
{
    uint64_t h = (req_id ^ (uint64_t)frontend_id << 40) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(h >> 32) & (t->index_size - 1);
}

/* The place in the index where the request is, or the empty one where it would go. */
static uint32_t place(const struct request_table *t, uint32_t frontend_id, uint64_t req_id)
{
    uint32_t at = home(t, frontend_id, req_id);
    for (; t->index[at]; at = (at + 1) & (t->index_size - 1)) {
        const struct request *r = &t->items[t->index[at] - 1];
        if (r->frontend_id == frontend_id && r->req_id == req_id)
            break;
    }
    return at;
}

uint32_t request_find(const struct request_table *t, uint32_t frontend_id, uint64_t req_id)
{
    uint32_t found = t->index[place(t, frontend_id, req_id)];
    return found ? found - 1 : REQUEST_NONE;
}

/* Close the gap so that no later probe stops early: move back every entry whose home is not after
 * the gap. */
static void unindex(struct request_table *t, const struct request *r)
{
    uint32_t mask = t->index_size - 1;
    uint32_t gap = place(t, r->frontend_id, r->req_id);
    for (uint32_t at = (gap + 1) & mask; t->index[at]; at = (at + 1) & mask) {
        const struct request *other = &t->items[t->index[at] - 1];
        uint32_t from = home(t, other->frontend_id, other->req_id);
        if (((at - from) & mask) >= ((at - gap) & mask)) {
            t->index[gap] = t->index[at];
            gap = at;
        }
    }
    t->index[gap] = 0;
}

/* The next array of the allocation at *at, NULL when it is empty. */
static void *own(uint32_t **at, const void *from, size_t n)
{
    uint32_t *to = *at;
    if (!n)
        return NULL;
    memcpy(to, from, n * sizeof *to);
    *at += n;
    return to;
}

/* One allocation: hashes [n_hash], tokens [n_max], then the arrays of the parameters. */
static enum q_code own_arrays(struct request *r, const struct msg_submit *m, uint32_t n_max,
                              uint32_t n_hash, struct q_err *e)
{
    size_t n_array =
        m->stop_ids.n + 2 * m->bias_ids.n + m->allowed_ids.n + m->bad_words.n + m->thinking.n;
    enum q_code rc = sample_params_from_submit(&r->params, m, e);
    if (rc)
        return rc;
    size_t hash_bytes = n_hash * sizeof *r->hashes;
    r->memory = q_alloc(hash_bytes + (n_max + n_array) * sizeof(uint32_t));
    if (!r->memory)
        return q_fail(e, Q_NO_MEMORY, "request: out of memory for %u tokens", n_max);
    r->hashes = n_hash ? r->memory : NULL;
    uint32_t *p = r->tokens = (uint32_t *)((char *)r->memory + hash_bytes);
    memcpy(p, m->prompt.data, m->prompt.n * sizeof *p);
    if (m->emitted.n)
        memcpy(p + m->prompt.n, m->emitted.data, m->emitted.n * sizeof *p);
    p += n_max;
    r->params.stop_ids = own(&p, m->stop_ids.data, m->stop_ids.n);
    r->params.bias_ids = own(&p, m->bias_ids.data, m->bias_ids.n);
    r->params.bias = own(&p, m->bias.data, m->bias.n);
    r->params.allowed_ids = own(&p, m->allowed_ids.data, m->allowed_ids.n);
    r->params.bad_words = own(&p, m->bad_words.data, m->bad_words.n);
    r->params.thinking = own(&p, m->thinking.data, m->thinking.n);
    r->params.grammar_data = NULL;  /* held beside those of other requests */
    r->params.grammar_after = NULL; /* in the program */
    r->params.n_grammar_after = 0;
    r->params.reasoning_tags = NULL;
    r->params.n_reasoning_tags = 0;
    return Q_OK;
}

enum q_code request_add(struct request_table *t, uint32_t *i_request, uint32_t frontend_id,
                        const struct msg_submit *m, uint32_t n_max, struct q_err *e)
{
    uint32_t i = t->free.first;
    if (i == REQUEST_NONE)
        return q_fail(e, Q_NO_SPACE, "scheduler: the limit of %u requests is reached", t->n_item);
    struct request *r = &t->items[i];
    uint32_t n_hash = t->hashing && !m->no_prefix_cache ? 1 + n_max / KV_BLOCK_TOKENS : 0;
    const void *program = NULL;
    size_t n_byte = m->grammar.n / sizeof(uint32_t) * sizeof(uint32_t);
    enum q_code rc =
        n_byte ? programs_take(&t->programs, &program, m->grammar.data, n_byte, e) : Q_OK;
    if (!rc && (rc = own_arrays(r, m, n_max, n_hash, e)))
        programs_drop(&t->programs, program);
    if (rc)
        return rc;
    r->params.grammar_data = program;
    request_list_remove(t, &t->free, i);
    r->state = REQUEST_WAITING;
    r->frontend_id = frontend_id;
    r->req_id = m->req_id;
    r->arrival = t->n_arrival++;
    r->use++;
    r->n_prompt = (uint32_t)m->prompt.n;
    r->n_token = (uint32_t)(m->prompt.n + m->emitted.n);
    r->n_max = n_max;
    r->n_planned = r->n_sampling = r->n_counted = r->n_hash = r->n_cached = 0;
    r->publish_at = UINT32_MAX;
    r->n_lost = r->n_since_lost = 0;
    r->prompt_settled = r->params.n_prompt_logprob == SAMPLE_NO_LOGPROBS ? r->n_prompt : 1;
    r->prompt_next = r->prompt_settled;
    r->started = false;
    r->priority = (int32_t)m->priority;
    r->adapter = m->adapter_id;
    r->admission_seq = 0;
    r->deadline_us = INT64_MAX;
    r->queue_us = 0;
    r->items = step_items_get(m, &r->n_item, &r->item_offset);
    r->table = (struct kv_table){NULL, 0};
    r->held = (struct swap_held){0};
    r->state_row = r->pending = r->rolling = STATE_NONE;
    r->snapshot_at[0] = r->snapshot_at[1] = 0;
    r->n_restored = 0;
    t->index[place(t, frontend_id, m->req_id)] = i + 1;
    *i_request = i;
    return Q_OK;
}

void request_remove(struct request_table *t, uint32_t i_request)
{
    struct request *r = &t->items[i_request];
    Q_ASSERT(r->state != REQUEST_FREE && r->table.n_block == 0 && r->held.n_block == 0 &&
             r->state_row == STATE_NONE && r->pending == STATE_NONE);
    unindex(t, r);
    programs_drop(&t->programs, r->params.grammar_data);
    r->params.grammar_data = NULL;
    q_free(r->memory);
    r->memory = NULL;
    r->state = REQUEST_FREE;
    request_list_prepend(t, &t->free, i_request); /* used again first: it is in the cache */
}

void request_list_insert(struct request_table *t, struct request_list *l, uint32_t before,
                         uint32_t i_request)
{
    struct request *r = &t->items[i_request];
    r->prev = before;
    r->next = before == REQUEST_NONE ? l->first : t->items[before].next;
    if (before == REQUEST_NONE)
        l->first = i_request;
    else
        t->items[before].next = i_request;
    if (r->next == REQUEST_NONE)
        l->last = i_request;
    else
        t->items[r->next].prev = i_request;
    l->n++;
}

void request_list_append(struct request_table *t, struct request_list *l, uint32_t i_request)
{
    request_list_insert(t, l, l->last, i_request);
}

void request_list_prepend(struct request_table *t, struct request_list *l, uint32_t i_request)
{
    request_list_insert(t, l, REQUEST_NONE, i_request);
}

void request_list_remove(struct request_table *t, struct request_list *l, uint32_t i_request)
{
    struct request *r = &t->items[i_request];
    if (r->prev == REQUEST_NONE)
        l->first = r->next;
    else
        t->items[r->prev].next = r->next;
    if (r->next == REQUEST_NONE)
        l->last = r->prev;
    else
        t->items[r->next].prev = r->prev;
    l->n--;
}

void request_table_check(const struct request_table *t)
{
    uint32_t n_indexed = 0, n_used = 0;
    for (uint32_t at = 0; at < t->index_size; at++)
        n_indexed += t->index[at] != 0;
    for (uint32_t i = 0; i < t->n_item; i++) {
        const struct request *r = &t->items[i];
        if (r->state == REQUEST_FREE) {
            Q_ASSERT(!r->memory);
            continue;
        }
        n_used++;
        Q_ASSERT(r->memory && request_find(t, r->frontend_id, r->req_id) == i);
    }
    Q_ASSERT(n_used == n_indexed && n_used + t->free.n == t->n_item);
}
