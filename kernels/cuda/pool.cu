/* SPDX-License-Identifier: Apache-2.0 */
/* pool_rows: one row of each sequence, or a sum or the maximum of its rows. Definition: ops_device.h.
 *
 * Shape: a block of 64 threads for 64 columns of one result, a column a thread, so that neighbouring
 *   threads read neighbouring columns. For all rows, the threads look for the sequence together, and each has
 *   16 rows of its column in flight, which it takes one after the other. Shared: 4 bytes.
 * Order: the rows of the sequence ascending: the reference's bits.
 * Bytes: 4 a column of each row that is read, 4 written. Limit: bytes / bandwidth; of one long sequence the
 *   latency of n_query / 16 loads.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"

#define THREADS 64u
#define DEEP    16u /* rows in flight */

struct pool_shared {
    uint32_t seq;
};

/* The sequence that has the row; every thread of the block gets it. */
static __device__ __forceinline__ struct attention_seq
sequence_of(const struct pool_rows_args &a, uint32_t row, struct pool_shared &s)
{
    if (threadIdx.x == 0)
        s.seq = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_seq; i += THREADS)
        if (row >= a.seqs[i].row && row - a.seqs[i].row < a.seqs[i].n_query)
            s.seq = i;
    __syncthreads();
    return a.seqs[s.seq];
}

/* x is the value of row k of the sequence, from 0 on. */
static __device__ __forceinline__ float take(enum pool_rows_kind kind, float y, float x, uint32_t k)
{
    if (kind == POOL_ROWS_MAX)
        return x > y || x != x || k == 0 ? x : y;
    return kind == POOL_ROWS_WEIGHTED_MEAN ? fmaf((float)(k + 1), x, y) : y + x;
}

static __device__ __forceinline__ float all_rows(const struct pool_rows_args &a, uint32_t c,
                                                 struct attention_seq q)
{
    const float *x = a.x + q.row * a.x_stride + c;
    const float n = (float)q.n_query;
    float y = 0;
    for (uint32_t r = 0; r < q.n_query; r += DEEP) {
        float v[DEEP];
#pragma unroll
        for (unsigned i = 0; i < DEEP; i++)
            v[i] = r + i < q.n_query ? x[(r + i) * a.x_stride] : 0;
#pragma unroll
        for (unsigned i = 0; i < DEEP; i++)
            if (r + i < q.n_query)
                y = take(a.kind, y, v[i], r + i);
    }
    if (a.kind == POOL_ROWS_MAX)
        return y;
    if (a.kind == POOL_ROWS_WEIGHTED_MEAN)
        return y / (float)((uint64_t)q.n_query * (q.n_query + 1) / 2);
    return y / (a.kind == POOL_ROWS_MEAN_SQRT_LEN ? sqrtf(n) : n);
}

static __global__ void __launch_bounds__(THREADS) pool_rows_kernel(const struct pool_rows_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct pool_shared);
    const uint32_t row = a.rows[blockIdx.x], c = blockIdx.y * THREADS + threadIdx.x;
    float *y = a.y + blockIdx.x * a.y_stride;
    if (a.kind == POOL_ROWS_ONE) {
        if (c < a.n_col)
            y[c] = a.x[row * a.x_stride + c];
        return;
    }
    const struct attention_seq q = sequence_of(a, row, s);
    if (c < a.n_col)
        y[c] = all_rows(a, c, q);
}

extern "C" void pool_rows_cuda(const struct pool_rows_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(pool_rows_kernel, dim3(a->n_row, div_up(a->n_col, THREADS)), THREADS,
               sizeof(struct pool_shared), x, *a);
}
