/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operations on rows: embed, scatter, silu_mul. No sums, so no order.
 *
 * Shape: a block of 256 threads for 1024 columns of one row, four neighbouring columns a thread when
 *   addresses allow (16 bytes of f32), else one after the other; scatter: a thread an element. No shared
 *   memory.
 * Bytes a column: embed 2 + 4 (16-bit table), silu_mul 8 + y's 2 or 4 and one exp; scatter some 16 an
 *   element. Limit: bytes / bandwidth (prefill), the launch (decode).
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"

#define THREADS 256u
#define COLUMNS (4 * THREADS)

static dim3 grid_of(uint32_t n_row, uint32_t n_col)
{
    return dim3(n_row, div_up(n_col, COLUMNS));
}

/* fn(c, 4) for this thread's four columns, or fn(c, 1) for each of them. */
template <class F> static __device__ __forceinline__ void columns(uint32_t n_col, bool four, F fn)
{
    const uint32_t c = blockIdx.y * COLUMNS + threadIdx.x * 4;
    if (four && c + 4 <= n_col) {
        fn(c, true);
        return;
    }
    for (uint32_t i = c; i < c + 4 && i < n_col; i++)
        fn(i, false);
}

static __global__ void __launch_bounds__(THREADS) embed_kernel(const struct embed_args a, bool four)
{
    await_inputs();
    const uint32_t given = a.ids[blockIdx.x], r = a.mod ? given / a.div % a.mod : given;
    const uint32_t id = a.limit && r >= a.limit ? 0 : r;
    const size_t from = (size_t)id * a.n_col, to = (size_t)blockIdx.x * a.n_col;
    if (given == KERN_NO_ROW)
        return;
    columns(a.n_col, four, [&](uint32_t c, bool all4) {
        if (all4) {
            float4 v = load4_as(a.table, a.dtype, from + c);
            v = make_float4(v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale);
            if (a.accumulate) {
                const float4 y = load4_as(a.y, DT_F32, to + c);
                v = make_float4(y.x + v.x, y.y + v.y, y.z + v.z, y.w + v.w);
            }
            store4_as(a.y, DT_F32, to + c, v);
        } else {
            const float v = load_as(a.table, a.dtype, from + c) * a.scale;
            a.y[to + c] = a.accumulate ? a.y[to + c] + v : v;
        }
    });
}

extern "C" void embed_cuda(const struct embed_args *a, const struct kern_exec *x)
{
    const bool four = fours(a->table, a->dtype, a->n_col) && fours(a->y, DT_F32, a->n_col);
    if (a->n_row && a->n_col)
        launch(embed_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a, four);
}

/* expf, not __expf: 2 ulp at most, and a launch waits for memory anyway. */
static __device__ __forceinline__ float silu_times(float gate, float up)
{
    return gate / (1.0f + expf(-gate)) * up;
}

static __global__ void __launch_bounds__(THREADS)
    silu_mul_kernel(const struct silu_mul_args a, bool four)
{
    await_inputs();
    const float *gate = a.x + blockIdx.x * a.x_stride, *up = gate + a.n_col;
    const size_t to = blockIdx.x * a.y_stride;
    columns(a.n_col, four, [&](uint32_t c, bool all4) {
        if (all4) {
            const float4 g = load4_as(gate, DT_F32, c), u = load4_as(up, DT_F32, c);
            store4_as(a.y, a.y_dtype, to + c,
                      make_float4(silu_times(g.x, u.x), silu_times(g.y, u.y), silu_times(g.z, u.z),
                                  silu_times(g.w, u.w)));
        } else {
            store_as(a.y, a.y_dtype, to + c, silu_times(gate[c], up[c]));
        }
    });
}

extern "C" void silu_mul_cuda(const struct silu_mul_args *a, const struct kern_exec *x)
{
    const bool four = fours(a->x, DT_F32, a->x_stride) && a->n_col % 4 == 0 &&
                      fours(a->y, a->y_dtype, a->y_stride);
    if (a->n_row && a->n_col)
        launch(silu_mul_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a, four);
}

static __global__ void __launch_bounds__(THREADS) scatter_kernel(const struct scatter_args a)
{
    await_inputs();
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n || (a.at && a.at[i] == KERN_NO_SLOT))
        return;
    const uint32_t v = a.value[a.from ? a.from[i] : (size_t)i * (a.step ? a.step : 1)];
    a.dst[a.at ? a.at[i] : i] = !a.limit || v < a.limit ? v : 0;
}

extern "C" void scatter_cuda(const struct scatter_args *a, const struct kern_exec *x)
{
    if (a->n)
        launch(scatter_kernel, dim3(div_up(a->n, THREADS)), THREADS, 0, x, *a);
}

#ifndef QUIRE_CUDA_HOST
extern "C" bool cuda_code_waits(void)
{
    struct cudaFuncAttributes of;
    return cudaFuncGetAttributes(&of, (const void *)embed_kernel) == cudaSuccess &&
           of.ptxVersion >= 90;
}
#endif
