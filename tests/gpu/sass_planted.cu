/* SPDX-License-Identifier: Apache-2.0 */
/* One fault a kernel: planted_F is wrong in the figure F of tests/gpu/sass.txt, and each row about F must find it
 * (sass.py --planted). They are compiled only. */
#include <stdint.h>

/* Products of 16-bit floats, int8 and e4m3 where the table wants wgmma: by mma.sync, or by none of both. */
static __device__ __forceinline__ void product(float c[4], uint32_t a, uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
                 "{%5,%5}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a), "r"(b));
}
static __device__ __forceinline__ void by_mma(float *y, const uint32_t *x)
{
    float c[4] = {};
    product(c, x[threadIdx.x], x[threadIdx.x + 32]);
    y[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
__global__ void planted_hgmma(float *y, const uint32_t *x)
{
    by_mma(y, x);
}
__global__ void planted_igmma(float *y, const uint32_t *x)
{
    by_mma(y, x);
}
__global__ void planted_qgmma(float *y, const uint32_t *x)
{
    by_mma(y, x);
}
__global__ void planted_hmma(float *y, const float *x)
{
    y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x + 32];
}
__global__ void planted_imma(int *y, const int *x)
{
    y[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x + 32];
}

/* A wait behind each product, for all products. */
static __device__ __forceinline__ void wait_for_each(float *y, uint64_t a, uint64_t b)
{
    float c[4] = {};
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "l"(a + i), "l"(b + i));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    y[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
__global__ void __launch_bounds__(128) planted_wgmma_per_wait(float *y, uint64_t a, uint64_t b)
{
    wait_for_each(y, a, b);
}
__global__ void __launch_bounds__(128) planted_waits_open(float *y, uint64_t a, uint64_t b)
{
    wait_for_each(y, a, b);
}

/* All warps keep the registers of the launch. */
__global__ void __launch_bounds__(256, 1) planted_setmaxnreg(float *y, const uint32_t *x)
{
    if (threadIdx.x < 128)
        by_mma(y, x);
    else
        y[threadIdx.x] = 0;
}

/* The branch that gives registers away takes them back and uses more than it kept. */
__global__ void __launch_bounds__(256, 1) planted_registers_left(float *y, const float *x)
{
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float kept[96];
#pragma unroll
        for (unsigned i = 0; i < 96; i++)
            kept[i] = x[i * 128 + threadIdx.x];
        __syncwarp();
#pragma unroll
        for (unsigned i = 0; i < 96; i++)
            y[i * 128 + threadIdx.x] = kept[i] * kept[95 - i];
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        y[threadIdx.x] = 0;
    }
}

/* Weights are loaded only when the previous kernel has ended. */
__global__ void planted_loads_early(uint4 *y, const uint4 *w)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    uint4 v[8];
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
        v[i] = w[i * 32 + threadIdx.x];
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
        y[i * 32 + threadIdx.x] = v[7 - i];
}

/* A byte a load. */
__global__ void planted_loop_16(int *y, const volatile signed char *x, unsigned n)
{
    int sum = 0;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < n; i += 32)
        sum = sum * 3 + x[i] / 7 + (x[i] % 5 ^ sum >> 3) % 11;
    y[threadIdx.x] = sum;
}

/* Each byte of a cache by itself. */
__global__ void planted_widen_16(uint4 *y, unsigned n)
{
    __shared__ uint4 raw[32], wide[64];
    raw[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < n; i += 32) {
        const uint4 v = raw[i];
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        uint32_t to[8] = {};
#pragma unroll
        for (unsigned j = 0; j < 16; j++) {
            const float f = __uint_as_float((w[j / 4] >> j % 4 * 8 & 0x7f) << 20) * 0x1p120f;
            to[j / 2] |= __float_as_uint(f) >> 16 << j % 2 * 16;
        }
        wide[2 * i] = make_uint4(to[0], to[1], to[2], to[3]);
        wide[2 * i + 1] = make_uint4(to[4], to[5], to[6], to[7]);
    }
    __syncthreads();
    y[threadIdx.x] = wide[threadIdx.x];
    y[threadIdx.x + 32] = wide[threadIdx.x + 32];
}
