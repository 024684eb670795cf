/* SPDX-License-Identifier: Apache-2.0 */
/* split - how kernels share work among threads, and the sizes of what they keep in scratch.
 *
 * Private to kernels/. Work is cut into ranges by the numbers alone; which thread does a range
 * never changes a bit. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_SPLIT_H
#define QUIRE_KERNELS_TILING_SPLIT_H
#include "kernels/ops/ops.h"

/* Rows of partial sums linear keeps while it walks K in slices. 96 rows x 64 outputs x 4 bytes = 24
 * KiB, half of L1. */
#define KERN_LINEAR_ROWS    96u
/* (token, head) rows attention takes at a time through one KV head: 24 rows share each load of K
 * and of V. */
#define KERN_ATTENTION_ROWS 24u

struct range {
    size_t begin, end;
};

/* The share of 0 … n - 1 that thread ith of nth does. */
static inline struct range split(size_t n, const struct kern_exec *x)
{
    struct range r = {n * x->ith / x->nth, n * (x->ith + 1) / x->nth};
    return r;
}

#endif
