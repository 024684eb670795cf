/* SPDX-License-Identifier: Apache-2.0 */
/* The index is a hash table whose chains run through the blocks: it allocates nothing, and a
 * look-up reads one bucket and, nearly always, one block. A hit compares the whole hash. */
#include "engine/sched/kv.h"
#include <string.h>
#include "common/mem.h"

enum q_code kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table, uint32_t seq_blocks_max,
                    struct q_err *e)
{
    *p = (struct kv_pool)KV_POOL_INIT;
    for (p->n_bucket = 16; p->n_bucket < n_block && p->n_bucket < UINT32_C(1) << 30;)
        p->n_bucket *= 2;
    p->free = q_calloc(n_block, sizeof *p->free);
    p->infos = q_calloc(n_block, sizeof *p->infos);
    p->buckets = q_calloc(p->n_bucket, sizeof *p->buckets);
    p->seen = q_calloc(n_block, sizeof *p->seen);
    p->slab = q_calloc((size_t)n_table * seq_blocks_max, sizeof *p->slab);
    if (!p->free || !p->infos || !p->buckets || !p->seen || !p->slab) {
        kv_release(p);
        return q_fail(e, Q_NO_MEMORY, "kv: out of memory for %u blocks and %u tables of %u",
                      n_block, n_table, seq_blocks_max);
    }
    for (uint32_t i = 0; i < n_block; i++) /* block 0 is given out first */
        p->free[i] = n_block - 1 - i;
    for (uint32_t i = 0; i < n_block; i++)
        p->infos[i].state = STATE_NONE;
    for (uint32_t i = 0; i < p->n_bucket; i++)
        p->buckets[i] = KV_NONE;
    p->n_free = p->n_block = n_block;
    p->n_table = n_table;
    p->seq_blocks_max = seq_blocks_max;
    return Q_OK;
}

void kv_release(struct kv_pool *p)
{
    q_free(p->free);
    q_free(p->infos);
    q_free(p->buckets);
    q_free(p->seen);
    q_free(p->slab);
    states_release(&p->states);
    *p = (struct kv_pool)KV_POOL_INIT;
}

/* The hash is uniform: any of its bits will do. */
static kv_block *bucket_of(const struct kv_pool *p, const struct kv_hash *hash)
{
    return &p->buckets[hash->words[0] & (p->n_bucket - 1)];
}

static kv_block find_block(const struct kv_pool *p, const struct kv_hash *hash)
{
    kv_block b = *bucket_of(p, hash);
    while (b != KV_NONE && memcmp(&p->infos[b].hash, hash, sizeof *hash) != 0)
        b = p->infos[b].chain;
    return b;
}

static void drop_snapshot(struct kv_pool *p, kv_block b)
{
    if (p->infos[b].state != STATE_NONE)
        states_detach(&p->states, p->infos[b].state);
    p->infos[b].state = STATE_NONE;
}

static void unindex(struct kv_pool *p, kv_block b)
{
    drop_snapshot(p, b);
    kv_block *at = bucket_of(p, &p->infos[b].hash);
    while (*at != b)
        at = &p->infos[*at].chain;
    *at = p->infos[b].chain;
    p->infos[b].indexed = false;
}

/* To the young end of the cached ones. */
static void cache(struct kv_pool *p, kv_block b)
{
    p->infos[b].prev = p->newest;
    p->infos[b].next = KV_NONE;
    if (p->newest == KV_NONE)
        p->oldest = b;
    else
        p->infos[p->newest].next = b;
    p->newest = b;
    p->n_cached++;
}

static void uncache(struct kv_pool *p, kv_block b)
{
    const struct kv_info *i = &p->infos[b];
    if (i->prev == KV_NONE)
        p->oldest = i->next;
    else
        p->infos[i->prev].next = i->next;
    if (i->next == KV_NONE)
        p->newest = i->prev;
    else
        p->infos[i->next].prev = i->prev;
    p->n_cached--;
}

static kv_block take_block(struct kv_pool *p)
{
    if (p->n_free)
        return p->free[--p->n_free];
    kv_block b = p->oldest;
    uncache(p, b);
    unindex(p, b);
    return b;
}

void kv_open(struct kv_pool *p, struct kv_table *t, uint32_t i_table)
{
    Q_ASSERT(i_table < p->n_table);
    t->blocks = p->slab + (size_t)i_table * p->seq_blocks_max;
    t->n_block = 0;
}

enum q_code kv_grow(struct kv_pool *p, struct kv_table *t, uint32_t n_token, struct q_err *e)
{
    uint32_t need = kv_need(t, n_token);
    Q_ASSERT(t->n_block + need <= p->seq_blocks_max);
    if (need > kv_available(p))
        return q_fail(e, Q_NO_SPACE, "kv: %u blocks needed, %u of %u free", need, kv_available(p),
                      p->n_block);
    for (; need; need--) {
        kv_block b = take_block(p);
        p->infos[b].refs = 1;
        t->blocks[t->n_block++] = b;
    }
    return Q_OK;
}

void kv_drop(struct kv_pool *p, struct kv_table *t)
{
    while (t->n_block) {
        kv_block b = t->blocks[--t->n_block];
        Q_ASSERT(b < p->n_block && p->infos[b].refs > 0);
        if (--p->infos[b].refs)
            continue;
        if (p->infos[b].indexed)
            cache(p, b);
        else
            p->free[p->n_free++] = b;
    }
}

uint32_t kv_match(const struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                  uint32_t *n_used)
{
    uint32_t n_hit = 0;
    kv_block b;
    *n_used = 0;
    for (; n_hit < n && (b = find_block(p, &hashes[n_hit])) != KV_NONE; n_hit++)
        *n_used += p->infos[b].refs > 0;
    return n_hit;
}

void kv_share(struct kv_pool *p, struct kv_table *t, const struct kv_hash *hashes, uint32_t n)
{
    Q_ASSERT(t->n_block == 0 && n <= p->seq_blocks_max);
    for (uint32_t i = 0; i < n; i++) {
        kv_block b = find_block(p, &hashes[i]);
        Q_ASSERT(b != KV_NONE);
        if (p->infos[b].refs++ == 0)
            uncache(p, b);
        t->blocks[t->n_block++] = b;
    }
}

uint32_t kv_n_common(const struct kv_pool *p, const struct kv_table *t)
{
    uint32_t n = 0;
    while (n < t->n_block && p->infos[t->blocks[n]].refs > 1)
        n++;
    return n;
}

void kv_publish(struct kv_pool *p, const struct kv_table *t, uint32_t i, const struct kv_hash *hash)
{
    Q_ASSERT(i < t->n_block);
    kv_block b = t->blocks[i], parent = i ? t->blocks[i - 1] : KV_NONE;
    struct kv_info *info = &p->infos[b];
    if (info->indexed || (i && !p->infos[parent].indexed) || find_block(p, hash) != KV_NONE)
        return;
    kv_block *at = bucket_of(p, hash);
    info->hash = *hash;
    info->indexed = true;
    info->parent = parent;
    info->chain = *at;
    *at = b;
}

static void unpublish_block(struct kv_pool *p, kv_block b)
{
    unindex(p, b);
    if (p->infos[b].refs)
        return;
    uncache(p, b);
    p->free[p->n_free++] = b;
}

/* Blocks of a chain have any numbers, so one pass may meet a child before its parent. */
void kv_unpublish(struct kv_pool *p, const struct kv_table *t, uint32_t i)
{
    for (; i < t->n_block; i++)
        if (p->infos[t->blocks[i]].indexed)
            unpublish_block(p, t->blocks[i]);
    for (bool more = true; more;) {
        more = false;
        for (kv_block b = 0; b < p->n_block; b++) {
            const struct kv_info *info = &p->infos[b];
            if (!info->indexed || info->parent == KV_NONE || p->infos[info->parent].indexed)
                continue;
            unpublish_block(p, b);
            more = true;
        }
    }
}

void kv_forget(struct kv_pool *p)
{
    for (; p->oldest != KV_NONE; p->oldest = p->infos[p->oldest].next)
        p->free[p->n_free++] = p->oldest;
    p->newest = KV_NONE;
    p->n_cached = 0;
    for (uint32_t i = 0; i < p->n_bucket; i++)
        p->buckets[i] = KV_NONE;
    for (uint32_t b = 0; b < p->n_block; b++) {
        drop_snapshot(p, b);
        p->infos[b].indexed = false;
    }
}

/* ---- snapshots ---- */

uint32_t kv_match_state(const struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                        uint64_t step, uint32_t *state)
{
    for (; n; n--) {
        const kv_block b = find_block(p, &hashes[n - 1]);
        Q_ASSERT(b != KV_NONE);
        *state = p->infos[b].state;
        if (states_is_there(&p->states, *state, step))
            return n;
    }
    *state = STATE_NONE;
    return 0;
}

bool kv_has_state(const struct kv_pool *p, const struct kv_hash *hash)
{
    const kv_block b = find_block(p, hash);
    return b != KV_NONE && p->infos[b].state != STATE_NONE;
}

static bool make_room(struct kv_pool *p, uint64_t step)
{
    uint32_t evicted;
    const bool has_room = states_make_room(&p->states, step, &evicted);
    if (evicted != STATE_NONE)
        p->infos[evicted].state = STATE_NONE;
    return has_room;
}

uint32_t kv_take_snapshot(struct kv_pool *p, uint64_t step)
{
    return make_room(p, step) ? states_take_snapshot(&p->states, step) : STATE_NONE;
}

bool kv_attach_snapshot(struct kv_pool *p, const struct kv_hash *hash, uint32_t state)
{
    const kv_block b = find_block(p, hash);
    if (b == KV_NONE || p->infos[b].state != STATE_NONE) {
        states_drop(&p->states, state);
        return false;
    }
    p->infos[b].state = state;
    states_attach(&p->states, state, b);
    return true;
}

void kv_drop_unused(struct kv_pool *p, uint32_t state, kv_block block, uint64_t step)
{
    if (p->infos[block].state == state && !p->states.infos[state].was_found &&
        states_is_there(&p->states, state, step))
        drop_snapshot(p, block);
}

bool kv_hold_state(struct kv_pool *p, uint32_t state, uint64_t step)
{
    const bool has_room = make_room(p, step);
    if (has_room)
        states_hold(&p->states, state);
    return has_room;
}

/* ---- checks ---- */

void kv_check_begin(const struct kv_pool *p)
{
    memset(p->seen, 0, p->n_block * sizeof *p->seen);
}

/* Indexed blocks are a table's first ones, each the parent of the next. */
void kv_check_table(const struct kv_pool *p, const struct kv_table *t)
{
    Q_ASSERT(t->n_block <= p->seq_blocks_max);
    kv_block parent = KV_NONE;
    for (uint32_t i = 0; i < t->n_block; i++) {
        kv_block b = t->blocks[i];
        Q_ASSERT(b < p->n_block);
        p->seen[b]++;
        if (p->infos[b].indexed)
            Q_ASSERT(p->infos[b].parent == parent && (i == 0 || p->infos[parent].indexed));
        parent = b;
    }
}

/* Free and cached blocks are listed once, marked by a value that no count reaches; the parent of a
 * cached block is not marked yet: a table holds it, or it was released later. */
static uint32_t check_lists(const struct kv_pool *p)
{
    uint32_t n = 0;
    for (; n < p->n_free; n++) {
        kv_block b = p->free[n];
        Q_ASSERT(b < p->n_block && p->seen[b] == 0 && !p->infos[b].indexed);
        p->seen[b] = UINT32_MAX;
    }
    kv_block prev = KV_NONE;
    for (kv_block b = p->oldest; b != KV_NONE; b = p->infos[b].next, n++) {
        const struct kv_info *i = &p->infos[b];
        Q_ASSERT(i->prev == prev && p->seen[b] == 0 && i->refs == 0 && i->indexed);
        Q_ASSERT(i->parent == KV_NONE ||
                 (p->seen[i->parent] != UINT32_MAX && p->infos[i->parent].indexed));
        p->seen[b] = UINT32_MAX;
        prev = b;
    }
    Q_ASSERT(p->newest == prev && n == p->n_free + p->n_cached);
    return n;
}

void kv_check_end(const struct kv_pool *p)
{
    uint32_t n_used = 0, n_indexed = 0, n_found = 0;
    for (uint32_t b = 0; b < p->n_block; b++) {
        const struct kv_info *i = &p->infos[b];
        Q_ASSERT(p->seen[b] == i->refs);
        n_used += i->refs > 0;
        n_indexed += i->indexed;
        if (i->state != STATE_NONE)
            Q_ASSERT(i->indexed && p->states.infos[i->state].block == b &&
                     p->states.infos[i->state].use == STATE_SNAPSHOT);
        if (i->indexed && i->parent != KV_NONE)
            Q_ASSERT(p->infos[i->parent].refs >= i->refs);
    }
    for (uint32_t k = 0; k < p->n_bucket; k++)
        for (kv_block b = p->buckets[k]; b != KV_NONE; b = p->infos[b].chain) {
            Q_ASSERT(p->infos[b].indexed && find_block(p, &p->infos[b].hash) == b);
            n_found++;
        }
    Q_ASSERT(n_found == n_indexed);
    Q_ASSERT(n_used + check_lists(p) == p->n_block);
}
