/* SPDX-License-Identifier: Apache-2.0 */
/* kv - the pool of KV-cache blocks of one engine.
 *
 * A block holds keys and values of STEP_BLOCK_TOKENS tokens of one sequence, all layers. The pool
 * knows only numbers; the memory is the worker's. Blocks are counted: a shared prefix (to come) is
 * one block with refs > 1 and is never written. free + used == n_block, always (kv_check). Which
 * block a sequence gets does not matter to its result, so the free list is a stack: the warmest
 * block first. Design: engine/sched/README.md.
 * Threads: the scheduler's loop only. Allocates nothing after kv_init. */
#ifndef QUIRE_ENGINE_SCHED_KV_H
#define QUIRE_ENGINE_SCHED_KV_H
#include <stdint.h>
#include "common/err.h"
#include "proto/step.h"

#define KV_BLOCK_TOKENS STEP_BLOCK_TOKENS

typedef uint32_t kv_block; /* index into the pool */

struct kv_pool {
    kv_block *free; /* [n_free] a stack; capacity n_block */
    uint32_t *refs; /* [n_block] tables that hold the block; 0 = free */
    uint32_t *seen; /* [n_block] scratch of kv_check */
    kv_block *slab; /* [n_table, seq_blocks_max] */
    uint32_t n_free, n_block;
    uint32_t n_table, seq_blocks_max;
};
/* clang-format off */
#define KV_POOL_INIT {NULL, NULL, NULL, NULL, 0, 0, 0, 0}
/* clang-format on */

struct kv_table {     /* one sequence's blocks, position order */
    kv_block *blocks; /* [n_block], a row of the pool's slab */
    uint32_t n_block; /* used entries; capacity is kv_pool.seq_blocks_max */
};

/* n_table: sequences at once. Errors: Q_NO_MEMORY. */
FALLIBLE kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table, uint32_t seq_blocks_max,
                 struct q_err *e);
void kv_release(struct kv_pool *p);

static inline uint32_t kv_blocks_for(uint32_t n_token)
{
    return n_token / KV_BLOCK_TOKENS + (n_token % KV_BLOCK_TOKENS != 0);
}
/* Blocks kv_grow would take. */
static inline uint32_t kv_need(const struct kv_table *t, uint32_t n_token)
{
    uint32_t n = kv_blocks_for(n_token);
    return n > t->n_block ? n - t->n_block : 0;
}

/* An empty table in row i_table of the slab; the row must not be in use. */
void kv_open(struct kv_pool *p, struct kv_table *t, uint32_t i_table);
/* Append blocks so `t` covers n_token tokens.
 * Shapes: t->blocks [ceil(n_token / KV_BLOCK_TOKENS)], at least what it was. Cost: O(blocks added).
 * Errors: Q_NO_SPACE (t unchanged; the caller preempts). Ownership: released by kv_drop. */
FALLIBLE kv_grow(struct kv_pool *p, struct kv_table *t, uint32_t n_token, struct q_err *e);
/* Give all blocks back; the table is empty and may be grown again. */
void kv_drop(struct kv_pool *p, struct kv_table *t);
/* One more or one fewer holder of a block in use; the last one frees it. */
void kv_ref(struct kv_pool *p, kv_block b);
void kv_unref(struct kv_pool *p, kv_block b);

/* Begin a check, count each table, end it: refs are exactly what the tables hold, and the free list
 * holds the rest. */
void kv_check_begin(const struct kv_pool *p);
void kv_check_table(const struct kv_pool *p, const struct kv_table *t);
void kv_check_end(const struct kv_pool *p);

#endif
