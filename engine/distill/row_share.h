/* SPDX-License-Identifier: Apache-2.0 */
/* row_share - how the losses' threads divide rows, and memory that kernels ask of them.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_DISTILL_ROW_SHARE_H
#define QUIRE_ENGINE_DISTILL_ROW_SHARE_H
#include "engine/model/region.h"
#include "kernels/kern.h"

struct row_share { /* of rows, of columns */
    uint32_t begin, end;
};
static inline struct row_share row_share_of(uint32_t n, const struct kern_exec *x)
{
    return (struct row_share){
        (uint32_t)((uint64_t)n * x->ith / x->nth),
        (uint32_t)((uint64_t)n * (x->ith + 1) / x->nth),
    };
}

/* A kernel that the thread calls for rows of its own. */
static inline struct kern_exec row_exec_alone(struct kern_exec x)
{
    x.ith = 0;
    x.nth = 1;
    return x;
}

/* scratch: [threads][n_byte]. */
static inline struct kern_exec row_exec(unsigned char *scratch, size_t n_byte, uint32_t ith,
                                        uint32_t nth)
{
    return (struct kern_exec){
        .ith = ith,
        .nth = nth,
        .scratch = scratch + ith * n_byte,
        .scratch_bytes = n_byte,
    };
}

/* What a thread needs for products, norms and losses of rows. */
static inline size_t row_scratch_bytes(void)
{
    const size_t any = kern_scratch_bytes(1, 1, KERN_PANEL);
    const size_t train = kern_train_scratch_bytes(KERN_PANEL);
    return ((any > train ? any : train) + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

/* Elements between rows of n: whole lines, an odd number of them, because a column of rows that lie
 * a power of 2 apart is in a few sets of the cache. */
static inline size_t row_stride(uint32_t n, size_t per_line)
{
    return ((n + per_line - 1) / per_line | 1) * per_line;
}

#endif
