/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm, rms_norm, and norm_rows: + residual, norm, (int8) in one pass over the row.
 *
 *     r = 1 / sqrt(sum x^2 / n_col + eps), y = x * r * w
 *
 * Shape: a block a row, 256 threads (32 for rows of at most 256 columns: heads). Thread t has columns
 *   4 t … 4 t + 3, then 4 (t + n) …; it reads them from memory once, and again, from L1, to write.
 *   Shared: 256 bytes, a float and an int a warp.
 * Order: thread t adds the squares of its columns ascending, one fma each, from +0; lanes by halves, warps
 *   ascending (launch.cuh). It depends on n_col and on nothing else, so x that is or is not aligned to 16
 *   bytes gives the same bits.
 *   layer_norm: the sum of columns in the same way, then the squares of the differences from the mean.
 * Bytes a column: rms_norm and layer_norm 4 + y's 2 or 4; norm_rows 4, with `add` + 2 (16-bit) and + 4 (x back), and y's
 *   2 (int8: 1). Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/int8.cuh"

#define THREADS     256u
#define THREADS_FEW 32u

struct norm_shared {
    struct block_room<float> sum;
    struct block_room<int> whole;
};

/* fn(c) for each of this thread's columns, ascending. */
template <class F> static __device__ __forceinline__ void my_columns(uint32_t n_col, F fn)
{
    for (uint32_t at = 4 * threadIdx.x; at < n_col; at += 4 * blockDim.x)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (at + i < n_col)
                fn(at + i);
}

static __device__ __forceinline__ float inverse_rms(float sum, uint32_t n_col, float eps)
{
    return 1.0f / sqrtf(sum / (float)n_col + eps);
}

static unsigned threads_for(uint32_t n_col)
{
    return n_col <= 8 * THREADS_FEW ? THREADS_FEW : THREADS;
}

static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(const struct rms_norm_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct norm_shared);
    const float *row = a.x + blockIdx.x * a.x_stride;
    float sum = 0;
    my_columns(a.n_col, [&](uint32_t c) { sum = fmaf(row[c], row[c], sum); });
    const float r = inverse_rms(block_reduce<BLOCK_SUM>(sum, &s.sum), a.n_col, a.eps);
    /* y may be x: a thread writes only columns that no other thread reads */
    my_columns(a.n_col, [&](uint32_t c) {
        store_as(a.y, a.y_dtype, blockIdx.x * a.y_stride + c, row[c] * r * a.w[c]);
    });
}

extern "C" void rms_norm_cuda(const struct rms_norm_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(rms_norm_kernel, dim3(a->n_row), threads_for(a->n_col), sizeof(struct norm_shared),
               x, *a);
}

static __global__ void __launch_bounds__(THREADS) layer_norm_kernel(const struct layer_norm_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct norm_shared);
    const float *row = a.x + (a.rows ? a.rows[blockIdx.x] : blockIdx.x) * a.x_stride;
    float sum = 0, squares = 0;
    my_columns(a.n_col, [&](uint32_t c) { sum += row[c]; });
    const float mean = block_reduce<BLOCK_SUM>(sum, &s.sum) / (float)a.n_col;
    my_columns(a.n_col, [&](uint32_t c) { squares = fmaf(row[c] - mean, row[c] - mean, squares); });
    const float r = inverse_rms(block_reduce<BLOCK_SUM>(squares, &s.sum), a.n_col, a.eps);
    /* y may be x: a thread writes only columns that no other thread reads */
    my_columns(a.n_col, [&](uint32_t c) {
        const float y = (row[c] - mean) * r;
        store_as(a.y, a.y_dtype, blockIdx.x * a.y_stride + c,
                 a.b ? fmaf(y, a.w[c], a.b[c]) : y * a.w[c]);
    });
}

extern "C" void layer_norm_cuda(const struct layer_norm_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(layer_norm_kernel, dim3(a->n_row), threads_for(a->n_col), sizeof(struct norm_shared),
               x, *a);
}

/* y as int8 with the row's scale; the row's q sum. */
static __device__ __forceinline__ void store_int8(const struct norm_rows_args &a, const float *row,
                                                  float r, struct norm_shared &s)
{
    int8_t *q = (int8_t *)a.y + blockIdx.x * a.y_stride;
    const uint32_t n_k = (a.n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    float most = 0;
    my_columns(a.n_col, [&](uint32_t c) { most = most_of(fabsf(row[c] * r * a.w[c]), most); });
    const struct int8_scale scale = int8_scale_for(block_reduce<BLOCK_MOST>(most, &s.sum));
    int sum = 0;
    my_columns(n_k, [&](uint32_t c) {
        q[c] = c < a.n_col ? int8_of(row[c] * r * a.w[c], scale.inverse) : (int8_t)0;
        sum += q[c];
    });
    sum = block_reduce<BLOCK_SUM>(sum, &s.whole);
    if (threadIdx.x == 0) {
        a.quant[blockIdx.x].scale = scale.scale;
        a.quant[blockIdx.x].sum = sum;
    }
}

static __global__ void __launch_bounds__(THREADS) norm_rows_kernel(const struct norm_rows_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct norm_shared);
    const size_t at = a.rows ? a.rows[blockIdx.x] : blockIdx.x;
    float *row = a.x + at * a.x_stride;
    float sum = 0;
    my_columns(a.n_col, [&](uint32_t c) {
        float v = row[c];
        if (a.add) {
            v += load_as(a.add, a.add_dtype, at * a.add_stride + c);
            row[c] = v;
        }
        sum = fmaf(v, v, sum);
    });
    const float r = inverse_rms(block_reduce<BLOCK_SUM>(sum, &s.sum), a.n_col, a.eps);
    if (a.y_dtype == DT_I8) {
        store_int8(a, row, r, s);
        return;
    }
    my_columns(a.n_col, [&](uint32_t c) {
        store_as(a.y, a.y_dtype, blockIdx.x * a.y_stride + c, row[c] * r * a.w[c]);
    });
}

extern "C" void norm_rows_cuda(const struct norm_rows_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(norm_rows_kernel, dim3(a->n_row), threads_for(a->n_col), sizeof(struct norm_shared),
               x, *a);
}
