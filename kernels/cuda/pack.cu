/* SPDX-License-Identifier: Apache-2.0 */
/* pack and pack_int8: rows of a checkpoint into the layouts of layout.h. Values have the bits of ref/pack*.c; only
 * the layout differs. There are no padding rows past n_out_total. pack_int4: pack_int4.cu.
 *
 * Shape: a block of 256 threads a row. Shared: 128 bytes, a float a warp (pack_int8).
 * Bytes: the source once (pack_int8: twice, the second time from L2) and the result. Source rows may lie at
 *   any address, so they are read byte by byte; it runs once, at load, behind the disk.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/int8.cuh"
#include "kernels/cuda/layout.h"

#define THREADS 256u

/* Any alignment: source rows may be parts of a mapped file. */
static __device__ __forceinline__ float load_bytes(const void *p, enum dtype dtype, size_t i)
{
    const uint8_t *b = (const uint8_t *)p + i * (dtype == DT_F32 ? 4 : 2);
    const uint32_t low = b[0] | (uint32_t)b[1] << 8;
    if (dtype == DT_F32)
        return __uint_as_float(low | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    return dtype == DT_F16 ? f16_value((uint16_t)low) : bf16_value((uint16_t)low);
}

static __global__ void __launch_bounds__(THREADS) pack_kernel(const struct pack_args a)
{
    await_inputs();
    const size_t to = (size_t)(a.row_start + blockIdx.x) * a.n_in,
                 from = (size_t)blockIdx.x * a.n_in;
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        store_as(a.dst, a.dst_dtype, to + k, load_bytes(a.src, a.src_dtype, from + k));
}

extern "C" void pack_cuda(const struct pack_args *a, const struct kern_exec *x)
{
    if (a->n_out && a->n_in)
        launch_packer(pack_kernel, dim3(a->n_out), THREADS, 0, x, *a);
}

static __global__ void __launch_bounds__(THREADS) pack_int8_kernel(const struct pack_int8_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct block_room<float>);
    const size_t o = a.row_start + blockIdx.x, from = (size_t)blockIdx.x * a.n_in;
    int8_t *q = (int8_t *)a.dst + o * a.n_in;
    float most = 0;
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        most = most_of(fabsf(load_bytes(a.src, a.src_dtype, from + k)), most);
    const struct int8_scale scale = int8_scale_for(block_reduce<BLOCK_MOST>(most, &s));
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        q[k] = int8_of(load_bytes(a.src, a.src_dtype, from + k), scale.inverse);
    if (threadIdx.x == 0)
        ((float *)((char *)a.dst + int8_scales_at(a.n_out_total, a.n_in)))[o] = scale.scale;
}

static __global__ void __launch_bounds__(THREADS) set_quant_kernel(const struct pack_int8_args a)
{
    await_inputs();
    const size_t o = a.row_start + blockIdx.x, from = (size_t)blockIdx.x * a.n_in;
    int8_t *q = (int8_t *)a.dst + o * a.n_in;
    for (uint32_t k = threadIdx.x; k < a.n_in; k += THREADS)
        q[k] = a.q[from + k];
    if (threadIdx.x == 0)
        ((float *)((char *)a.dst + int8_scales_at(a.n_out_total, a.n_in)))[o] =
            a.scales[blockIdx.x];
}

extern "C" void pack_int8_cuda(const struct pack_int8_args *a, const struct kern_exec *x)
{
    if (a->n_out && a->n_in && a->q)
        launch_packer(set_quant_kernel, dim3(a->n_out), THREADS, 0, x, *a);
    else if (a->n_out && a->n_in)
        launch_packer(pack_int8_kernel, dim3(a->n_out), THREADS, sizeof(struct block_room<float>),
                      x, *a);
}
