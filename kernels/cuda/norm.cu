/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm, rms_norm, norm_units (rms_norm of each unit of a row), and norm_rows: + residual, norm, (int8, e4m3) in one
 * pass over the row.
 *
 *     r = 1 / sqrt(sum x^2 / n_col + eps), y = x * r * w
 *
 * Shape: a block a row or unit, 256 threads (32 for at most 256 columns: heads). Thread t has columns
 *   4 t … 4 t + 3, then 4 (t + n) …; it reads them from memory once, and again, from L1, to write.
 *   Shared: 256 bytes, a float and an int a warp.
 * Order: thread t adds the squares of its columns ascending, one fma each, from +0; lanes by halves, warps
 *   ascending (launch.cuh). It depends on n_col and on nothing else, so x that is or is not aligned to 16
 *   bytes gives the same bits.
 *   layer_norm: the sum of columns in the same way, then the squares of the differences from the mean.
 * Bytes of e4m3 or int8 have the bits of the two operations in sequence. With scales of 128 columns a warp has those of
 *   a scale, four a lane.
 * Bytes a column: rms_norm and layer_norm 4 + y's 2 or 4; norm_rows 4, with `add` + 2 (16-bit) and + 4 (x back), and y's
 *   2 (int8, e4m3: 1). Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/fp8.cuh"
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

struct norm_vector { /* y = x / rms(x) * w */
    const float *x, *w;
    size_t to; /* elements of y before it */
    uint32_t n;
};

/* y may be x: a thread writes only columns that no other thread reads. */
static __device__ __forceinline__ void norm_one(const struct norm_vector &v, void *y,
                                                enum dtype y_dtype, float eps)
{
    SHARED_MEMORY(s, struct norm_shared);
    float sum = 0;
    my_columns(v.n, [&](uint32_t c) { sum = fmaf(v.x[c], v.x[c], sum); });
    const float r = inverse_rms(block_reduce<BLOCK_SUM>(sum, &s.sum), v.n, eps);
    my_columns(v.n, [&](uint32_t c) { store_as(y, y_dtype, v.to + c, v.x[c] * r * v.w[c]); });
}

static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(const struct rms_norm_args a)
{
    await_inputs();
    const size_t row = blockIdx.x;
    norm_one({a.x + row * a.x_stride, a.w, row * a.y_stride, a.n_col}, a.y, a.y_dtype, a.eps);
}

extern "C" void rms_norm_cuda(const struct rms_norm_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(rms_norm_kernel, dim3(a->n_row), threads_for(a->n_col), sizeof(struct norm_shared),
               x, *a);
}

static __global__ void __launch_bounds__(THREADS) norm_units_kernel(const struct norm_units_args a)
{
    await_inputs();
    const size_t row = blockIdx.x, at = (size_t)blockIdx.y * a.unit;
    norm_one({a.x + row * a.x_stride + at, a.w + (a.apart ? at : 0), row * a.y_stride + at, a.unit},
             a.y, a.y_dtype, a.eps);
}

extern "C" void norm_units_cuda(const struct norm_units_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_unit)
        launch(norm_units_kernel, dim3(a->n_row, a->n_unit), threads_for(a->unit),
               sizeof(struct norm_shared), x, *a);
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

/* y of columns c … c + 3; zeros from n_col on. */
static __device__ __forceinline__ float4 normed(const struct norm_rows_args &a, const float *row,
                                                float r, uint32_t c)
{
    return make_float4(c < a.n_col ? row[c] * r * a.w[c] : 0,
                       c + 1 < a.n_col ? row[c + 1] * r * a.w[c + 1] : 0,
                       c + 2 < a.n_col ? row[c + 2] * r * a.w[c + 2] : 0,
                       c + 3 < a.n_col ? row[c + 3] * r * a.w[c + 3] : 0);
}

/* y as e4m3 with the row's scale or the one given, or with those of its blocks. */
static __device__ __forceinline__ void store_fp8(const struct norm_rows_args &a, const float *row,
                                                 float r, struct norm_shared &s)
{
    uint8_t *q = (uint8_t *)a.y + blockIdx.x * a.y_stride;
    const uint32_t n_k = (a.n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    float most = 0;
    for (uint32_t c = 4 * threadIdx.x; !a.scales && c < n_k; c += 4 * blockDim.x)
        most = most_of(most_of_four(normed(a, row, r, c)), most);
    struct fp8_scale scale = {0, 0};
    if (!a.scales)
        scale = fp8_scale_for(block_reduce<BLOCK_MOST>(most, &s.sum), a.scale);
    for (uint32_t c = 4 * threadIdx.x; c / KERN_FP8_BLOCK * KERN_FP8_BLOCK < n_k;
         c += 4 * blockDim.x) { /* whole warps */
        const float4 y = normed(a, row, r, c);
        if (a.scales)
            scale = fp8_scale_for(warp_most(most_of_four(y)), 0);
        if (a.scales && threadIdx.x % WARP == 0)
            a.scales[blockIdx.x * a.scale_stride + c / KERN_FP8_BLOCK] = scale.scale;
        if (c < n_k)
            *(uint32_t *)(q + c) = fp8_of_four(y, scale.inverse);
    }
    if (!a.scales && threadIdx.x == 0)
        a.quant[blockIdx.x] = {scale.scale, 0};
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
    if (a.y_dtype == DT_F8_E4M3) {
        store_fp8(a, row, r, s);
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
