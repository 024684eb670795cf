/* SPDX-License-Identifier: Apache-2.0 */
/* kv - the pool of KV-cache blocks of one engine.
 *
 * A block holds keys and values of STEP_BLOCK_TOKENS tokens of one sequence, all layers. The pool
 * handles block numbers; the worker owns the memory. A block is in one of three states:
 *
 *     free --kv_grow--> used --last table lets go, not indexed--> free
 *                       used --last table lets go, indexed--> cached --kv_share--> used
 *                                                             cached --evicted by kv_grow--> used
 *
 * free + cached + used == n_block, always. A full block may be indexed (kv_publish) under the hash
 * of everything up to its last token; other tables then share it (kv_share), and it is never
 * written while it is indexed. Cached blocks are evicted in the order of their release, oldest
 * first. A table releases its blocks from last to first, and a block is indexed only after the
 * previous block of its table, so the parent of every indexed block is indexed, held by all tables
 * that hold the child, and released later: chains are evicted from their leaves.
 * Of a model with states (states.h) an indexed block may have a snapshot, which is dropped with the
 * block's place in the index, or before.
 * Threads: the scheduler's loop only. Allocates nothing after kv_init. */
#ifndef QUIRE_ENGINE_SCHED_KV_H
#define QUIRE_ENGINE_SCHED_KV_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/sched/states.h"
#include "proto/step.h"

#define KV_BLOCK_TOKENS STEP_BLOCK_TOKENS
#define KV_NONE         UINT32_MAX

typedef uint32_t kv_block; /* index into the pool */

struct kv_hash { /* identifies a chain of full blocks: SHA-256 (prefix.h) */
    uint64_t words[4];
};

struct kv_info {         /* one block */
    struct kv_hash hash; /* while indexed */
    uint32_t refs;       /* tables that hold the block; 0 = free or cached */
    bool indexed;
    kv_block parent;     /* while indexed: the block before it in its chain, KV_NONE = the first */
    kv_block chain;      /* while indexed: the next one in its bucket */
    kv_block prev, next; /* while cached: the blocks released before and after this one */
    uint32_t state;      /* while indexed: its snapshot; STATE_NONE: it has none */
};

struct kv_pool {
    kv_block *free;        /* [n_free] a stack; capacity n_block */
    struct kv_info *infos; /* [n_block] */
    kv_block *buckets;     /* [n_bucket] the index: first block of each; a power of two */
    uint32_t *seen;        /* [n_block] scratch of kv_check */
    kv_block *slab;        /* [n_table, seq_blocks_max] */
    uint32_t n_free, n_cached, n_block, n_bucket;
    kv_block oldest, newest; /* list of cached blocks */
    uint32_t n_table, seq_blocks_max;
    struct state_pool states; /* states_init by the pool's owner; released with the pool */
};
/* clang-format off */
#define KV_POOL_INIT \
    {NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, KV_NONE, KV_NONE, 0, 0, STATE_POOL_INIT}
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
/* Number of blocks that kv_grow would take. */
static inline uint32_t kv_need(const struct kv_table *t, uint32_t n_token)
{
    uint32_t n = kv_blocks_for(n_token);
    return n > t->n_block ? n - t->n_block : 0;
}
/* Number of blocks available to kv_grow. */
static inline uint32_t kv_available(const struct kv_pool *p)
{
    return p->n_free + p->n_cached;
}

/* An empty table in row i_table of the slab; the row must not be in use. */
void kv_open(struct kv_pool *p, struct kv_table *t, uint32_t i_table);
/* Append blocks so that `t` covers n_token tokens: free blocks first, then the oldest cached ones.
 * Shapes: t->blocks [ceil(n_token / KV_BLOCK_TOKENS)], at least what it was. Cost: O(blocks added).
 * Errors: Q_NO_SPACE (t unchanged; the caller preempts). Ownership: released by kv_drop. */
FALLIBLE kv_grow(struct kv_pool *p, struct kv_table *t, uint32_t n_token, struct q_err *e);
/* Release all blocks, the last first; the table is then empty and may be grown again. */
void kv_drop(struct kv_pool *p, struct kv_table *t);

/* Number of a chain's first blocks that are indexed; *n_used of these are held by tables, the
 * others are cached (kv_share takes them from kv_available). hashes: [n]. */
uint32_t kv_match(const struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                  uint32_t *n_used);
/* Take the first n blocks of a chain, as kv_match found them, into an empty table. */
void kv_share(struct kv_pool *p, struct kv_table *t, const struct kv_hash *hashes, uint32_t n);
/* Number of a table's first blocks that other tables hold too. */
uint32_t kv_n_common(const struct kv_pool *p, const struct kv_table *t);
/* Index the table's block i under hash, the chain's up to this block. Its tokens are known and will
 * be written before the block can be read. No effect if the previous block is not indexed, or if
 * another block has this hash. */
void kv_publish(struct kv_pool *p, const struct kv_table *t, uint32_t i,
                const struct kv_hash *hash);
/* The table's blocks from i on hold wrong numbers: neither they nor blocks of chains behind them
 * are found any more. Cost: O(n_block). */
void kv_unpublish(struct kv_pool *p, const struct kv_table *t, uint32_t i);
/* Clear the index: cached blocks become free, tables keep their blocks. Cost: O(n_block). */
void kv_forget(struct kv_pool *p);

/* Of a chain's first n blocks: how many end where the last snapshot is that step `step` may begin
 * with; *state is its row. 0: there is none. */
uint32_t kv_match_state(const struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                        uint64_t step, uint32_t *state);
/* Has the block with this hash a snapshot? False too if there is no such block. */
bool kv_has_state(const struct kv_pool *p, const struct kv_hash *hash);
/* A row for a snapshot that step `step` writes; STATE_NONE: there is none. */
uint32_t kv_take_snapshot(struct kv_pool *p, uint64_t step);
/* A snapshot of a row of kv_take_snapshot for the block with this hash. False, and the row is free,
 * if there is no such block or it has one. */
bool kv_attach_snapshot(struct kv_pool *p, const struct kv_hash *hash, uint32_t state);
/* If the block has this snapshot, no request has begun with it and no step writes it that is not
 * planned before step `step`: drop it. */
void kv_drop_unused(struct kv_pool *p, uint32_t state, kv_block block, uint64_t step);
/* Keep a running request's state while it waits. False: there is no room. */
bool kv_hold_state(struct kv_pool *p, uint32_t state, uint64_t step);

/* Begin a check, count each table, end it: every block is in exactly one state, refs equal the
 * number of tables that hold it, and chains are as described above. */
void kv_check_begin(const struct kv_pool *p);
void kv_check_table(const struct kv_pool *p, const struct kv_table *t);
void kv_check_end(const struct kv_pool *p);

#endif
