/* SPDX-License-Identifier: Apache-2.0 */
/* head_linear: a product for each head, by rows of one matrix (ops_mla.h), for latent attention.
 *
 * Shape: a block of 256 threads for one head, 8 rows and some outputs, so that a weight is read once for 8 rows.
 *   transposed: a thread an output, 256 of them; neighbouring threads read neighbouring weights.
 *   plain: 16 lanes an output, 16 of them; the lanes read 16 neighbouring weights.
 *   Shared: 256 inputs of the rows at a time, [256][8] floats = 8 KiB.
 * Order: that of ref/head_linear.c, so its bits.
 * Bytes: the head's weights once for 8 rows; FLOP: 2 n_w n_col a row and head, outside of the tensor cores.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_mla.h"
}

#define ROWS    8u
#define THREADS 256u
#define LANES   16u /* of a dot product */
#define INPUTS  256u

struct head_shared {
    float x[INPUTS][ROWS];
};
struct head_block { /* what a block computes */
    uint32_t head, row, n_in, n_out;
};

static __device__ __forceinline__ struct head_block my_block(const struct head_linear_args &a)
{
    return {blockIdx.x, blockIdx.y * ROWS, a.transposed ? a.n_w : a.n_col,
            a.transposed ? a.n_col : a.n_w};
}

/* Inputs `first` … of the block's rows; zeros past the last row or input. */
static __device__ __forceinline__ void load_inputs(struct head_shared &s,
                                                   const struct head_linear_args &a,
                                                   const struct head_block &b, uint32_t first)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < ROWS * INPUTS; i += THREADS) {
        const uint32_t row = b.row + i / INPUTS, k = first + i % INPUTS;
        const bool there = row < a.n_row && k < b.n_in;
        s.x[i % INPUTS][i / INPUTS] =
            there ? a.x[row * a.x_stride + (size_t)b.head * a.x_head + k] : 0.0f;
    }
    __syncthreads();
}

/* Weight [row, col] of the head. */
static __device__ __forceinline__ float
weight_at(const struct head_linear_args &a, const struct head_block &b, uint32_t row, uint32_t col)
{
    const size_t at = (size_t)b.head * a.w_rows + a.w_first + row;
    return load_as(a.w, a.w_dtype, at * a.n_col + col);
}

static __device__ __forceinline__ void store_sums(const struct head_linear_args &a,
                                                  const struct head_block &b, uint32_t o,
                                                  const float sums[ROWS])
{
    for (uint32_t r = 0; r < ROWS; r++)
        if (o < b.n_out && b.row + r < a.n_row)
            store_as(a.y, a.y_dtype, (b.row + r) * a.y_stride + (size_t)b.head * a.y_head + o,
                     sums[r]);
}

/* The numbers behind the inputs of a head, behind its outputs: by the block of the first outputs. */
static __device__ __forceinline__ void copy_kept(const struct head_linear_args &a,
                                                 const struct head_block &b)
{
    for (uint32_t i = threadIdx.x; blockIdx.z == 0 && i < ROWS * a.n_kept; i += THREADS) {
        const uint32_t row = b.row + i / a.n_kept, k = i % a.n_kept;
        if (row < a.n_row)
            ((float *)a.y)[row * a.y_stride + (size_t)b.head * a.y_head + b.n_out + k] =
                a.x[row * a.x_stride + (size_t)b.head * a.x_head + b.n_in + k];
    }
}

static __global__ void __launch_bounds__(THREADS)
    head_columns_kernel(const struct head_linear_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct head_shared);
    const struct head_block b = my_block(a);
    const uint32_t o = blockIdx.z * THREADS + threadIdx.x;
    float sums[ROWS] = {};
    for (uint32_t first = 0; first < b.n_in; first += INPUTS) {
        load_inputs(s, a, b, first);
        const uint32_t left = b.n_in - first, n = o >= b.n_out ? 0 : left < INPUTS ? left : INPUTS;
        for (uint32_t k = 0; k < n; k++) {
            const float w = weight_at(a, b, first + k, o);
            for (uint32_t r = 0; r < ROWS; r++)
                sums[r] = fmaf(s.x[k][r], w, sums[r]);
        }
    }
    store_sums(a, b, o, sums);
    copy_kept(a, b);
}

/* Four blocks a multiprocessor are enough: for five the compiler spills on sm_86. */
static __global__ void __launch_bounds__(THREADS, 4)
    head_dots_kernel(const struct head_linear_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct head_shared);
    const struct head_block b = my_block(a);
    const uint32_t o = blockIdx.z * (THREADS / LANES) + threadIdx.x / LANES;
    const uint32_t lane = threadIdx.x % LANES;
    float sums[ROWS] = {};
    for (uint32_t first = 0; first < b.n_in; first += INPUTS) {
        load_inputs(s, a, b, first);
        const uint32_t left = b.n_in - first, n = o >= b.n_out ? 0 : left < INPUTS ? left : INPUTS;
        for (uint32_t k = lane; k < n; k += LANES) {
            const float w = weight_at(a, b, o, first + k);
            for (uint32_t r = 0; r < ROWS; r++)
                sums[r] = fmaf(s.x[k][r], w, sums[r]);
        }
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t half = LANES / 2; half; half /= 2)
            sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], half);
    if (lane == 0)
        store_sums(a, b, o, sums);
    copy_kept(a, b);
}

extern "C" void head_linear_cuda(const struct head_linear_args *a, const struct kern_exec *x)
{
    const uint32_t tiles = div_up(a->n_row, ROWS);
    if (a->n_row == 0 || a->n_head == 0)
        return;
    if (a->transposed)
        launch(head_columns_kernel, dim3(a->n_head, tiles, div_up(a->n_col, THREADS)), THREADS,
               sizeof(struct head_shared), x, *a);
    else
        launch(head_dots_kernel, dim3(a->n_head, tiles, div_up(a->n_w, THREADS / LANES)), THREADS,
               sizeof(struct head_shared), x, *a);
}
