/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/kv.h"
#include <string.h>
#include "common/mem.h"

enum q_code kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table, uint32_t seq_blocks_max,
                    struct q_err *e)
{
    *p = (struct kv_pool)KV_POOL_INIT;
    p->free = q_calloc(n_block, sizeof *p->free);
    p->refs = q_calloc(n_block, sizeof *p->refs);
    p->seen = q_calloc(n_block, sizeof *p->seen);
    p->slab = q_calloc((size_t)n_table * seq_blocks_max, sizeof *p->slab);
    if (!p->free || !p->refs || !p->seen || !p->slab) {
        kv_release(p);
        return q_fail(e, Q_NO_MEMORY, "kv: no memory for %u blocks and %u tables of %u", n_block,
                      n_table, seq_blocks_max);
    }
    for (uint32_t i = 0; i < n_block; i++) /* block 0 is given out first */
        p->free[i] = n_block - 1 - i;
    p->n_free = p->n_block = n_block;
    p->n_table = n_table;
    p->seq_blocks_max = seq_blocks_max;
    return Q_OK;
}

void kv_release(struct kv_pool *p)
{
    q_free(p->free);
    q_free(p->refs);
    q_free(p->seen);
    q_free(p->slab);
    *p = (struct kv_pool)KV_POOL_INIT;
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
    if (need > p->n_free)
        return q_fail(e, Q_NO_SPACE, "kv: need %u blocks, %u of %u free", need, p->n_free,
                      p->n_block);
    for (; need; need--) {
        kv_block b = p->free[--p->n_free];
        p->refs[b] = 1;
        t->blocks[t->n_block++] = b;
    }
    return Q_OK;
}

void kv_drop(struct kv_pool *p, struct kv_table *t)
{
    while (t->n_block)
        kv_unref(p, t->blocks[--t->n_block]);
}

void kv_ref(struct kv_pool *p, kv_block b)
{
    Q_ASSERT(b < p->n_block && p->refs[b] > 0);
    p->refs[b]++;
}

void kv_unref(struct kv_pool *p, kv_block b)
{
    Q_ASSERT(b < p->n_block && p->refs[b] > 0);
    if (--p->refs[b] == 0)
        p->free[p->n_free++] = b;
}

void kv_check_begin(const struct kv_pool *p)
{
    memset(p->seen, 0, p->n_block * sizeof *p->seen);
}

void kv_check_table(const struct kv_pool *p, const struct kv_table *t)
{
    Q_ASSERT(t->n_block <= p->seq_blocks_max);
    for (uint32_t i = 0; i < t->n_block; i++) {
        Q_ASSERT(t->blocks[i] < p->n_block);
        p->seen[t->blocks[i]]++;
    }
}

void kv_check_end(const struct kv_pool *p)
{
    uint32_t n_used = 0;
    for (uint32_t i = 0; i < p->n_block; i++) {
        Q_ASSERT(p->seen[i] == p->refs[i]);
        n_used += p->refs[i] > 0;
    }
    Q_ASSERT(n_used + p->n_free == p->n_block);
    for (uint32_t i = 0; i < p->n_free; i++) { /* marked, so that one listed twice is found */
        kv_block b = p->free[i];
        Q_ASSERT(b < p->n_block && p->refs[b] == 0 && p->seen[b] == 0);
        p->seen[b] = 1;
    }
}
