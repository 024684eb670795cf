/* SPDX-License-Identifier: Apache-2.0 */
/* split - division of work among threads, and sizes of scratch.
 *
 * Private to kernels/. Ranges depend on sizes only; no bit depends on which thread computes a
 * range. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_SPLIT_H
#define QUIRE_KERNELS_TILING_SPLIT_H
#include "kernels/ops/ops.h"

/* Rows whose partial sums linear keeps while it iterates over slices of K. 96 rows x 64 outputs x 4
 * bytes = 24 KiB, half of L1. */
#define KERN_LINEAR_ROWS    96u
/* (token, head) rows that attention computes together for one KV head: 24 rows share each load of K
 * and of V. */
#define KERN_ATTENTION_ROWS 24u

struct range {
    size_t begin, end;
};

/* The range of 0 … n - 1 that thread ith of nth computes. */
static inline struct range split(size_t n, const struct kern_exec *x)
{
    struct range r = {n * x->ith / x->nth, n * (x->ith + 1) / x->nth};
    return r;
}

#endif
