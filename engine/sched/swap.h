/* SPDX-License-Identifier: Apache-2.0 */
/* swap - KV blocks of preempted requests in host memory, and the choice between swap and
 * recomputation.
 *
 * A preempted request releases all its blocks. Its KV is recomputed when it returns, or copied to a
 * second pool and back:
 *
 *     swap       2 * blocks * (time to copy a block)     out now, and in again later
 *     recompute  rows * (time per row of a prefill)      of those blocks
 *
 * The cheaper one is chosen (PREEMPT_AUTO). Both times are measured while the engine runs: copies
 * in steps with copies, rows in steps that are mostly prefill; each is a ratio of slowly decaying
 * sums, so that large steps have more weight and about the last hundred steps count. Before the
 * first measurement copies count as free (the first copy measures them) and rows as expensive.
 * After SWAP_RETRY recomputations in a row copies are measured again: the first touch of fresh
 * memory, for example, makes them seem slower than they are. The choice affects when a request
 * continues, but no bit of its answer (DESIGN section 6).
 *
 * The pool handles block numbers; the worker owns memory and copies. Planned copies are in outs and
 * ins until they are written into a step. A host block may be reused as soon as its copy back is
 * planned: the copies of a step are done before those of the next, in a step outs before ins, and
 * outs are planned before ins.
 * Threads: the scheduler's loop only. Allocates nothing after swap_init. */
#ifndef QUIRE_ENGINE_SCHED_SWAP_H
#define QUIRE_ENGINE_SCHED_SWAP_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/sched/kv.h"
#include "proto/step.h"

#define SWAP_RETRY 64u /* recomputations in a row until copying is measured again */

struct swap_rate { /* a measured time: us / n each */
    double n, us;
};
struct swap_costs {
    struct swap_rate copy, row; /* of a block; of a row of prefill */
    uint32_t n_lost;            /* consecutive decisions against copying */
};

struct swap_held {    /* one request's blocks in host memory; n_block 0 = none */
    uint32_t first;   /* host block, the others follow through swap_pool.next */
    uint32_t n_block; /* for the request's blocks i_block … i_block + n_block - 1 */
    uint32_t i_block;
    uint32_t n_row; /* positions below it are present; the last block may be partially filled */
};

struct swap_pool {
    uint32_t *next;   /* [n_block] the next host block of the same request, or of the free ones */
    uint32_t *out_at; /* [n_block] number in outs + 1 while its copy is not in a step; 0 = it is */
    uint32_t *seen;   /* [n_block] scratch of swap_check */
    uint32_t n_block, n_used, n_holder;
    uint32_t n_touched; /* blocks from here on were never used: their memory is not allocated yet */
    uint32_t free;      /* first free block among those used before; KV_NONE = none */
    struct step_copy *outs, *ins; /* [n_out], [n_in], each of copies_max */
    uint32_t n_out, n_in, copies_max;
    struct swap_costs costs;
};
/* clang-format off */
#define SWAP_POOL_INIT {.next = NULL, .free = KV_NONE}
/* clang-format on */

/* n_block 0: no swapping. Errors: Q_NO_MEMORY. */
FALLIBLE swap_init(struct swap_pool *p, uint32_t n_block, uint32_t copies_max, struct q_err *e);
void swap_release(struct swap_pool *p);

/* True if there is room for n_block more blocks, in the pool and in the copies of a step. */
bool swap_has_room(const struct swap_pool *p, uint32_t n_block);
/* Plan the copies out of blocks[0 … h->n_block - 1]; h identifies the request's blocks and has its
 * host blocks afterwards. Requires room. */
void swap_out(struct swap_pool *p, struct swap_held *h, const kv_block *blocks);
/* Number of copies that swap_in would plan for a request with n_shared blocks; 0: the host blocks
 * are of no use (covered by the shared blocks, or with a gap between). */
uint32_t swap_n_in(const struct swap_held *h, uint32_t n_shared);
/* Plan the copies into a request's blocks (blocks[i] is its i-th) from n_shared on, and release the
 * host blocks. At most copies_max in all until swap_sent. */
void swap_in(struct swap_pool *p, struct swap_held *h, const kv_block *blocks, uint32_t n_shared);
/* Release the host blocks without copying. */
void swap_drop(struct swap_pool *p, struct swap_held *h);
/* The planned copies are in a step. */
void swap_sent(struct swap_pool *p);
/* The worker's memory is lost: every host block is free. The caller also clears the swap_held of
 * every request. */
void swap_forget(struct swap_pool *p);

/* True if copying n_block blocks out and in costs less than computing n_row rows. Counts
 * consecutive decisions against copying. */
bool swap_is_cheaper(struct swap_costs *c, uint32_t n_block, uint32_t n_row);
/* Record a measurement: `us` microseconds to copy n blocks, or to compute n rows. */
void swap_measure(struct swap_rate *r, uint32_t n, uint32_t us);

/* Begin a check, count each holder, end it: every host block is held once or free. */
void swap_check_begin(const struct swap_pool *p);
void swap_check_held(const struct swap_pool *p, const struct swap_held *h);
void swap_check_end(const struct swap_pool *p);

#endif
