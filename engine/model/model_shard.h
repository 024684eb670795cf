/* SPDX-License-Identifier: Apache-2.0 */
/* model_shard - a model whose matrices are divided among tensor-parallel ranks.
 *
 * A rank has some of the panels of outputs of each matrix that products read, in whatever format
 * they are packed, and all of what is no matrix. It computes its columns of a product and gets the
 * other ranks' columns before the next operation; everything else all ranks compute in whole. So
 * any family, weight format and number of ranks will do, and all ranks have the bits of the model
 * that is not divided. Sums over ranks would send less, but need heads, widths and scales of groups
 * that divide by the ranks. Threads: values. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_SHARD_H
#define QUIRE_ENGINE_MODEL_MODEL_SHARD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops/ops.h"

struct model_shard {
    uint32_t rank, size; /* size 0 or 1: the matrices are whole */
    /* out: [size][n], the x of all ranks in their order, which all of them call with the same n.
     * An error is kept in ctx, and out may have any numbers then. Called by thread 0. */
    void (*gather)(void *ctx, const float *x, size_t n, float *out);
    void *ctx;
};

static inline bool model_shard_is_part(const struct model_shard *s)
{
    return s->size > 1;
}

struct shard_outputs { /* of a matrix: those of a rank; n 0: it has none */
    uint32_t first, n;
};
/* first is a multiple of KERN_PANEL; ranks differ by one panel at most. */
static inline struct shard_outputs model_shard_outputs(const struct model_shard *s, uint32_t rank,
                                                       uint32_t n_out)
{
    const uint64_t n_panel = ((uint64_t)n_out + KERN_PANEL - 1) / KERN_PANEL;
    const uint64_t size = model_shard_is_part(s) ? s->size : 1;
    const uint64_t i = model_shard_is_part(s) ? rank : 0;
    const uint64_t first = n_panel * i / size * KERN_PANEL;
    const uint64_t end = n_panel * (i + 1) / size * KERN_PANEL;
    return (struct shard_outputs){
        (uint32_t)first,
        (uint32_t)((end < n_out ? end : n_out) - first),
    };
}

#endif
