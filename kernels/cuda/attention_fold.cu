/* SPDX-License-Identifier: Apache-2.0 */
/* The partial results of attention (attention.cu, attention_wide.cu, mla.cu) joined in ascending order: a warp a row,
 * a block of four a sequence; a lane has 8 columns at a time: l, l + 32, …
 *
 * Bytes: width + 2 floats a partial result, from L2. Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/attention_warp.cuh"
extern "C" {
#include "kernels/cuda/plan.h"
}

#define FOLD_ROWS    4u /* warps of a block */
#define FOLD_COLUMNS 8u /* of a lane at a time */

/* Columns first, first + 32, … of row r of the sequence in `out`, where the head begins at element `to`. part: the
 * row's first partial result. */
static __device__ __forceinline__ void fold_columns(const struct fold_args &a,
                                                    const struct plan_fold &fold, const float *part,
                                                    uint32_t head, size_t to, uint32_t first)
{
    float o[FOLD_COLUMNS] = {};
    struct folded f = {NONE, 0, 1, 0};
    for (uint32_t s = 0; s < fold.n_split; s++, part += (size_t)fold.n_row * (a.width + 2)) {
        fold_in(&f, part[a.width], part[a.width + 1]);
#pragma unroll
        for (unsigned i = 0; i < FOLD_COLUMNS; i++)
            if (first + i * WARP < a.width)
                o[i] = fold_value(f, o[i], part[first + i * WARP]);
    }
    const float inverse = inverse_of(f, a.sinks, head);
#pragma unroll
    for (unsigned i = 0; i < FOLD_COLUMNS; i++)
        if (first + i * WARP < a.width)
            store_as(a.out, a.out_dtype, to + first + i * WARP, o[i] * inverse);
}

static __global__ void __launch_bounds__(FOLD_ROWS *WARP) fold_kernel(const struct fold_args a)
{
    await_inputs();
    const struct plan_fold fold =
        ((const struct plan_fold *)((const struct plan_head *)a.plan + 1))[blockIdx.x];
    for (uint32_t r = threadIdx.x / WARP; fold.n_split && r < fold.n_row; r += FOLD_ROWS) {
        const uint32_t row = a.seqs[blockIdx.x].row + r / a.n_head, head = r % a.n_head;
        const float *part = a.partials + ((size_t)fold.partial + r) * (a.width + 2);
        for (uint32_t d = threadIdx.x % WARP; d < a.width; d += FOLD_COLUMNS * WARP)
            fold_columns(a, fold, part, head, row * a.out_stride + (size_t)head * a.width, d);
    }
}

void fold_launch(const struct fold_args *a, const void *plan_host, const struct kern_exec *x)
{
    if (plan_has_folds(plan_host))
        launch(fold_kernel, dim3(a->n_seq), FOLD_ROWS * WARP, 0, x, *a);
}
