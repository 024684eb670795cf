/* SPDX-License-Identifier: Apache-2.0 */
/* plan - the work plan of attention for one step, made on the host from lengths only and read by
 * the kernels. Arithmetic: attention.cu.
 *
 * The context of a sequence is cut into splits of PLAN_SPLIT positions, at multiples of it,
 * independent of the rest of the batch; the partial results are folded in ascending order. A piece
 * is a work item: some rows (query token x head of a KV head's group) over some splits. Small
 * pieces (one warp, 16 rows) serve sequences in decode: one split each, folded by another kernel,
 * or, if the memory for partial results is full or there are enough pieces for the card, all splits
 * one after the other. Large pieces (128
 * rows: two teams of 64, at once or one after the other) serve prompts and fold their splits
 * themselves. All give the same bits.
 *
 *     struct plan_head | struct plan_fold [n_seq] | struct plan_piece [n_small] | [n_large]
 *
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_PLAN_H
#define QUIRE_KERNELS_CUDA_PLAN_H
#include <stdbool.h>
#include "kernels/ops/ops_attention.h"

struct device_limits; /* device.h */

#define PLAN_SPLIT        256u /* positions */
#define PLAN_ROWS_SMALL   16u
#define PLAN_ROWS_LARGE   128u
#define PLAN_ROWS_TEAM    64u /* of attention.cu's kernel for them */
#define PLAN_NO_PARTIAL   UINT32_MAX
#define PLAN_SLOTS_MAX    4096u /* more at once: small pieces are always split */
/* Maximum number of partial results (of one row and head): those of 64 sequences of 16 k tokens and
 * 32 heads. Each takes 4 * (head_dim + 2) bytes. */
#define PLAN_PARTIAL_ROWS 131072u

struct plan_piece {
    uint32_t seq;
    uint32_t row;   /* first, of the sequence's query tokens x heads of a group */
    uint32_t split; /* first */
    uint32_t n_split;
    uint32_t partial; /* index of its first partial result; PLAN_NO_PARTIAL: it writes the output */
};
struct plan_fold { /* one per sequence: the partial result of split s and row r is at partial + s
                    * * n_row + r */
    uint32_t partial, n_split, n_row; /* n_split 0: nothing to fold; n_row: query tokens x heads */
};
struct plan_head {
    uint32_t n_small, n_large;
    uint32_t small_at, large_at; /* bytes from the start of the plan */
    uint32_t n_partial;          /* partial results; 0: nothing to fold */
};
/* Is there such work in a step? Where the plan is not known, all that it may have. */
static inline bool plan_has_small(const struct attention_args *a)
{
    const struct plan_head *plan = (const struct plan_head *)a->plan_host;
    return !plan || plan->n_small > 0;
}
static inline bool plan_has_folds(const void *plan_host)
{
    const struct plan_head *plan = (const struct plan_head *)plan_host;
    return !plan || plan->n_partial > 0;
}
static inline bool plan_has_large(const struct attention_args *a)
{
    const struct plan_head *plan = (const struct plan_head *)a->plan_host;
    return plan ? plan->n_large > 0 : a->n_row > a->n_seq;
}

/* Rows per multiprocessor, of heads wider than PLAN_NARROW, whose totals (4 * head_dim bytes each)
 * fit the workspace: it bounds the number of blocks of such launches. */
#define PLAN_NARROW    80u
#define PLAN_WIDE_ROWS 128u

/* Maximum number of partial results of a step within l. */
uint32_t plan_partial_rows(const struct device_limits *l);
/* Bytes of workspace of attention: the partial results, then the totals of heads wider than
 * PLAN_NARROW on a card of n_unit multiprocessors. */
size_t plan_workspace_bytes(const struct device_limits *l, uint32_t n_unit);
size_t plan_bytes(const struct device_limits *l);
/* n_slot: small pieces that the card computes at once (attention_slots); 0: not known.
 * seqs: [n_seq]; blocks are not read. A sequence without query tokens has no piece. */
void plan_make(void *out, const struct device_limits *l, uint32_t n_slot,
               const struct attention_seq *seqs, uint32_t n_seq);
/* The number of small pieces x KV heads that the current card computes at once; 0: attention of
 * such heads is of other kernels. */
uint32_t attention_slots(enum dtype kv_dtype, uint32_t head_dim);

#endif
