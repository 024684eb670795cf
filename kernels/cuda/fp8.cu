/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows_fp8 and pack_fp8: vectors of floats as e4m3 with one scale (that of rows may be given), with the
 * bits of ref/quant_rows_fp8.c and ref/pack_fp8.c (in another layout: layout.h); quant_rows_fp8_block and
 * pack_fp8_block: with scales per 128 columns and per block. The products are in linear.cu, linear_tiles.cu and linear_fp8_block.cu.
 *
 * Shape: a block of 256 threads a vector, two passes: the largest magnitude, which has no order, then the
 *   values, from L1 or L2. Shared: 128 bytes, a float a warp. Of 128
 *   columns a warp has four each lane, in registers: one pass, no shared memory.
 * Bytes: 4 + 1 a column (pack: the source's element + 1, once, at load). Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/layout.h"

#define THREADS 256u

static __global__ void __launch_bounds__(THREADS)
    quant_rows_fp8_kernel(const struct quant_rows_fp8_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct block_room<float>);
    const float *row = a.x + blockIdx.x * a.x_stride;
    uint8_t *q = a.q + blockIdx.x * a.q_stride;
    const uint32_t n_k = (a.n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    float most = 0;
    for (uint32_t c = threadIdx.x; c < a.n_col; c += THREADS)
        most = most_of(fabsf(row[c]), most);
    const struct fp8_scale scale = fp8_scale_for(block_reduce<BLOCK_MOST>(most, &s), a.scale);
    for (uint32_t c = threadIdx.x; c < n_k; c += THREADS)
        q[c] = c < a.n_col ? fp8_of(row[c], scale.inverse) : (uint8_t)0;
    if (threadIdx.x == 0) {
        a.rows[blockIdx.x].scale = scale.scale;
        a.rows[blockIdx.x].sum = 0;
    }
}

extern "C" void quant_rows_fp8_cuda(const struct quant_rows_fp8_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(quant_rows_fp8_kernel, dim3(a->n_row), THREADS, sizeof(struct block_room<float>), x,
               *a);
}

/* Any alignment: source rows may be parts of a mapped file. */
static __device__ __forceinline__ float load_bytes(const void *p, enum dtype dtype, size_t i)
{
    const uint8_t *b = (const uint8_t *)p + i * (dtype == DT_F32 ? 4 : 2);
    const uint32_t low = b[0] | (uint32_t)b[1] << 8;
    if (dtype == DT_F32)
        return __uint_as_float(low | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    return dtype == DT_F16 ? f16_value((uint16_t)low) : bf16_value((uint16_t)low);
}

static __global__ void __launch_bounds__(THREADS) pack_fp8_kernel(const struct pack_fp8_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct block_room<float>);
    const size_t o = a.row_start + blockIdx.x, from = (size_t)blockIdx.x * a.n_in;
    uint8_t *q = (uint8_t *)a.dst + o * a.n_in;
    float most = 0;
    for (uint32_t k = threadIdx.x; !a.q && k < a.n_in; k += THREADS)
        most = most_of(fabsf(load_bytes(a.src, a.src_dtype, from + k)), most);
    struct fp8_scale scale = fp8_scale_for(block_reduce<BLOCK_MOST>(most, &s), 0);
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        q[k] =
            a.q ? a.q[from + k] : fp8_of(load_bytes(a.src, a.src_dtype, from + k), scale.inverse);
    if (a.q)
        scale.scale = a.scales[blockIdx.x];
    if (threadIdx.x == 0)
        ((float *)((char *)a.dst + int8_scales_at(a.n_out_total, a.n_in)))[o] = scale.scale;
}

extern "C" void pack_fp8_cuda(const struct pack_fp8_args *a, const struct kern_exec *x)
{
    if (a->n_out && a->n_in)
        launch_packer(pack_fp8_kernel, dim3(a->n_out), THREADS, sizeof(struct block_room<float>), x,
                      *a);
}

/* ---- scales of blocks ---- */
/* Columns c … c + 3 of a row of n; FOURS: all aligned to 16 bytes, n a multiple of 4. */
template <bool FOURS>
static __device__ __forceinline__ float4 columns(const float *row, uint32_t c, uint32_t n)
{
    if (FOURS)
        return c < n ? *(const float4 *)(row + c) : make_float4(0, 0, 0, 0);
    return make_float4(c < n ? row[c] : 0, c + 1 < n ? row[c + 1] : 0, c + 2 < n ? row[c + 2] : 0,
                       c + 3 < n ? row[c + 3] : 0);
}

template <bool FOURS>
static __global__ void __launch_bounds__(THREADS)
    quant_rows_fp8_block_kernel(const struct quant_rows_fp8_block_args a)
{
    await_inputs();
    const uint32_t b = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const uint32_t c = b * KERN_FP8_BLOCK + threadIdx.x % WARP * 4;
    const uint32_t n_k = (a.n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    if (b * KERN_FP8_BLOCK >= a.n_col)
        return; /* all of a warp */
    const float4 v = columns<FOURS>(a.x + blockIdx.y * a.x_stride, c, a.n_col);
    const struct fp8_scale s = fp8_scale_for(warp_most(most_of_four(v)), 0);
    if (c < n_k)
        *(uint32_t *)(a.q + blockIdx.y * a.q_stride + c) = fp8_of_four(v, s.inverse);
    if (threadIdx.x % WARP == 0)
        a.scales[blockIdx.y * a.scale_stride + b] = s.scale;
}

extern "C" void quant_rows_fp8_block_cuda(const struct quant_rows_fp8_block_args *a,
                                          const struct kern_exec *x)
{
    const dim3 grid(div_up(a->n_col, THREADS / WARP * KERN_FP8_BLOCK), a->n_row);
    if (a->n_row == 0 || a->n_col == 0)
        return;
    if (a->n_col % 4 == 0 && fours(a->x, DT_F32, a->x_stride))
        launch(quant_rows_fp8_block_kernel<true>, grid, THREADS, 0, x, *a);
    else
        launch(quant_rows_fp8_block_kernel<false>, grid, THREADS, 0, x, *a);
}

static __global__ void __launch_bounds__(THREADS)
    pack_fp8_block_kernel(const struct pack_fp8_block_args a)
{
    await_inputs();
    const size_t o = a.row_start + blockIdx.x, from = (size_t)blockIdx.x * a.n_in;
    const uint32_t n_block = (a.n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
    const uint32_t stride = blocks_stride(a.n_in);
    uint8_t *q = (uint8_t *)a.dst + o * a.n_in;
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        q[k] = a.q[from + k];
    if (o % KERN_GATE_INTERLEAVE)
        return;
    float *scales = (float *)((char *)a.dst + int8_scales_at(a.n_out_total, a.n_in)) +
                    o / KERN_GATE_INTERLEAVE * stride;
    for (uint32_t b = threadIdx.x; b < stride; b += THREADS)
        scales[b] = b < n_block ? a.scales[(size_t)blockIdx.x * n_block + b] : 0;
}

extern "C" void pack_fp8_block_cuda(const struct pack_fp8_block_args *a, const struct kern_exec *x)
{
    if (a->n_out && a->n_in)
        launch_packer(pack_fp8_block_kernel, dim3(a->n_out), THREADS, 0, x, *a);
}
