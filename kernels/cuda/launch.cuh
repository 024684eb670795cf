/* SPDX-License-Identifier: Apache-2.0 */
/* launch - shared code of the .cu files: launches, conversions, reductions, and instructions without a CUDA
 * function. QUIRE_CUDA_HOST: a host compiler compiles the kernels, with tests/emu/cuda_emu.h in place of CUDA; its
 * functions of the same names are equivalent.
 *
 * Rules for kernels, so that both can run them and a row's bits do not depend on other rows:
 *   - warp operations take whole warps; blocks are multiples of 32 threads
 *   - shared memory is one struct, SHARED_MEMORY(s, struct x), which is its map
 *   - await_inputs() comes first, in every thread (below)
 *   - no atomic on floats; a sum's order depends on its own length only
 *   - compiled with --fmad=false (-ffp-contract=off): a fused multiply-add is where fmaf is written */
#ifndef QUIRE_KERNELS_CUDA_LAUNCH_CUH
#define QUIRE_KERNELS_CUDA_LAUNCH_CUH
#ifdef QUIRE_CUDA_HOST
#include "cuda_emu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#endif
#include <math.h>
#include <stdint.h>
extern "C" {
#include "kernels/ops/ops_device.h"
#include "kernels/ops/ops_elementwise.h"
#include "kernels/ops/ops_fp8.h"
#include "kernels/ops/ops_int4.h"
}
#ifndef QUIRE_CUDA_HOST
extern "C" {
#include "kernels/cuda/stream.h"
}
#endif

#define WARP      32u
#define ALL_LANES 0xffffffffu

/* ---- launches ---- */
#ifdef QUIRE_CUDA_HOST
template <class... P, class... A>
static inline void launch(void (*kernel)(P...), dim3 grid, unsigned n_thread, size_t shared,
                          const struct kern_exec *x, A... args)
{
    auto body = [=] { kernel(args...); };
    static_assert(std::is_trivially_copyable<decltype(body)>::value, "arguments are plain values");
    const emu_work work = {grid, n_thread, shared, [](void *p) { (*(decltype(body) *)p)(); },
                           (const void *)kernel};
    emu_launch_on(x->stream, work, &body, sizeof body);
}
#define SHARED_MEMORY(name, ...) __VA_ARGS__ &name = *(__VA_ARGS__ *)emu_shared(sizeof(__VA_ARGS__))
#else
#define SHARED_STATIC_MAX (48u << 10) /* above this a kernel sets an attribute */
template <class... P, class... A>
static inline void launch(void (*kernel)(P...), dim3 grid, unsigned n_thread, size_t shared,
                          const struct kern_exec *x, A... args)
{
    struct cuda_stream *stream = (struct cuda_stream *)x->stream;
    cudaLaunchAttribute attributes[LAUNCH_ATTRIBUTES] = {};
    cudaLaunchConfig_t how = {};
    how.attrs = attributes;
    how.numAttrs = launch_attributes(attributes, stream);
    how.gridDim = grid;
    how.blockDim = dim3(n_thread);
    how.dynamicSmemBytes = shared;
    how.stream = stream->cuda;
    stream->packed = false;
    /* the runtime keeps the attribute for the kernel: once would suffice, and it costs less than
     * to know whether it was set */
    if (shared > SHARED_STATIC_MAX)
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared);
    (void)cudaLaunchKernelEx(&how, kernel, args...); /* device_table.check returns its error */
}
/* Aligned as required by swizzled tiles (hopper.h). */
#define SHARED_MEMORY(name, ...)                                 \
    extern __shared__ __align__(1024) unsigned char cu_shared[]; \
    __VA_ARGS__ &name = *reinterpret_cast<__VA_ARGS__ *>(cu_shared)
#endif

/* ---- kernels that begin early ----
 * From compute capability 9.0 on a kernel of a stream that `overlaps` (stream.h) may begin while the previous
 * kernel still runs: as soon as all blocks of that kernel have called await_inputs and resources are free. Its own
 * await_inputs returns when the previous kernel has ended and its writes are visible. Before that call a kernel
 * reads only weights and writes nothing; kernels that write weights are launched by launch_packer, and the next
 * kernel begins after their end. Every thread of every kernel calls it: the end of the previous kernel implies the
 * end of earlier ones only because that kernel has waited for them. (CUDA programming guide, "Programmatic
 * Dependent Launch"; PTX ISA, griddepcontrol.) */
#ifdef QUIRE_CUDA_HOST
#define await_inputs() emu_await()
#define launch_packer  launch
#else
template <class... P, class... A>
static inline void launch_packer(void (*kernel)(P...), dim3 grid, unsigned n_thread, size_t shared,
                                 const struct kern_exec *x, A... args)
{
    launch(kernel, grid, n_thread, shared, x, args...);
    ((struct cuda_stream *)x->stream)->packed = true;
}
static __device__ __forceinline__ void await_inputs(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

/* Number of blocks that fit the card at once with this much shared memory each, at most `most` per multiprocessor;
 * for grids that do not depend on the work. */
#define BLOCKS_MOST 16u
static inline unsigned card_blocks(size_t shared, unsigned most)
{
#ifdef QUIRE_CUDA_HOST
    return !shared ? 1 : most < 3 ? most : 3; /* of one multiprocessor */
#else
    int device = 0, n_unit = 1, room = 0, blocks;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n_unit, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    blocks = (int)((size_t)room / (shared + 1024)); /* the system keeps 1 KiB a block */
    return (unsigned)n_unit * (blocks < 1 ? 1 : (unsigned)blocks > most ? most : (unsigned)blocks);
#endif
}

/* Maximum bytes of shared memory of a block on this card. */
static inline size_t card_shared_max(void)
{
#ifdef QUIRE_CUDA_HOST
    return emu_shared_max;
#else
    int device = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return (size_t)bytes;
#endif
}

static inline unsigned div_up(size_t n, size_t by)
{
    return (unsigned)((n + by - 1) / by);
}

/* Returns v, opaque to the compiler, so that values derived from it are not kept in registers. */
static __device__ __forceinline__ uint32_t anew(uint32_t v)
{
#ifndef QUIRE_CUDA_HOST
    asm volatile("" : "+r"(v));
#endif
    return v;
}

/* ---- conversions: the bits of a 16-bit float and back ---- */
#ifdef QUIRE_CUDA_HOST
static inline uint16_t bf16_of(float f)
{
    return f32_to_bf16(f);
}
static inline uint16_t f16_of(float f)
{
    return f32_to_f16(f);
}
static inline float f16_value(uint16_t h)
{
    return f16_to_f32(h);
}
extern "C" uint8_t
emu_f32_to_e4m3(float f); /* to nearest even, magnitudes above 448 become 448, NaN is 0x7f */
static inline uint8_t e4m3_of(float f)
{
    return emu_f32_to_e4m3(f);
}
#else
static __device__ __forceinline__ uint16_t bf16_of(float f)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
static __device__ __forceinline__ uint16_t f16_of(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}
static __device__ __forceinline__ float f16_value(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
static __device__ __forceinline__ uint8_t e4m3_of(float f)
{
    return (uint8_t)__nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E4M3);
}
#endif
static __device__ __forceinline__ float bf16_value(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
/* Two bf16 in a word, `low` in the low half. */
static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    return bf16_of(low) | (uint32_t)bf16_of(high) << 16;
}
/* Two 16-bit floats less two others, bf16 or f16. */
template <bool BF16> static __device__ __forceinline__ uint32_t minus_pair(uint32_t a, uint32_t b)
{
#ifdef QUIRE_CUDA_HOST
    uint32_t y = 0;
    for (unsigned i = 0; i < 32; i += 16)
        y |=
            BF16
                ? (uint32_t)bf16_of(bf16_value((uint16_t)(a >> i)) - bf16_value((uint16_t)(b >> i)))
                      << i
                : (uint32_t)f16_of(f16_value((uint16_t)(a >> i)) - f16_value((uint16_t)(b >> i)))
                      << i;
    return y;
#else
    uint32_t y;
    if (BF16) { /* sm_80 and sm_86 have no subtraction of bf16: a - b is fma(b, -1, a) */
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    } else {
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    }
    return y;
#endif
}
/* e4m3 is sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity. bf16 represents every value exactly:
 * the bits are shifted and a factor of 2^120 corrects the bias, of subnormals too. */
static __device__ __forceinline__ float e4m3_value(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24, rest = b & 0x7fu;
    const float f = __uint_as_float(rest << 20) * 0x1p120f;
    return __uint_as_float(__float_as_uint(rest == 0x7fu ? NAN : f) | sign);
}

/* One element of an array of F32, BF16 or F16. */
static __device__ __forceinline__ float load_as(const void *p, enum dtype dtype, size_t i)
{
    if (dtype == DT_F32)
        return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return dtype == DT_F16 ? f16_value(h) : bf16_value(h);
}
static __device__ __forceinline__ void store_as(void *p, enum dtype dtype, size_t i, float f)
{
    if (dtype == DT_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = dtype == DT_F16 ? f16_of(f) : bf16_of(f);
}

/* Four neighbours of it, i a multiple of 4 and p aligned to what is read. */
static __device__ __forceinline__ float4 load4_as(const void *p, enum dtype dtype, size_t i)
{
    if (dtype == DT_F32)
        return *(const float4 *)((const float *)p + i);
    const uint2 h = *(const uint2 *)((const uint16_t *)p + i);
    if (dtype == DT_F16)
        return make_float4(f16_value((uint16_t)h.x), f16_value((uint16_t)(h.x >> 16)),
                           f16_value((uint16_t)h.y), f16_value((uint16_t)(h.y >> 16)));
    return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u),
                       __uint_as_float(h.y << 16), __uint_as_float(h.y & 0xffff0000u));
}
static __device__ __forceinline__ void store4_as(void *p, enum dtype dtype, size_t i, float4 f)
{
    if (dtype == DT_F32)
        *(float4 *)((float *)p + i) = f;
    else if (dtype == DT_F16)
        *(uint2 *)((uint16_t *)p + i) = make_uint2(f16_of(f.x) | (uint32_t)f16_of(f.y) << 16,
                                                   f16_of(f.z) | (uint32_t)f16_of(f.w) << 16);
    else
        *(uint2 *)((uint16_t *)p + i) = make_uint2(bf16_pair(f.x, f.y), bf16_pair(f.z, f.w));
}
/* 16 bytes that are read once: not kept in L1, and not moved by the compiler. Not .nc: that requires memory that is
 * not written during the kernel, and the inputs of a kernel that began early are. */
static __device__ __forceinline__ uint4 load_once(const void *p)
{
#ifdef QUIRE_CUDA_HOST
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#endif
}
/* Whether rows at p, `stride` elements apart, can be read or written four elements at a time. */
static inline bool fours(const void *p, enum dtype dtype, size_t stride)
{
    const size_t element = dtype == DT_F32 ? 4 : 2;
    return (uintptr_t)p % (4 * element) == 0 && stride % 4 == 0;
}

/* ---- reductions of a warp and of a block ----
 * Lanes by halves: l with l ^ 16, ^ 8, ^ 4, ^ 2, ^ 1, so all lanes end with the same bits. Warps in
 * ascending order. The order depends on the number of threads only. */
static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, half);
    return v;
}
/* The larger; NaN once one was. */
static __device__ __forceinline__ float most_of(float a, float b)
{
    return a > b || a != a ? a : b;
}
static __device__ __forceinline__ float warp_most(float v)
{
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2)
        v = most_of(v, __shfl_xor_sync(ALL_LANES, v, half));
    return v;
}
template <class T> static __device__ __forceinline__ T warp_add(T v) /* of integers */
{
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, half);
    return v;
}

template <class T> struct block_room { /* of one reduction; up to 32 warps */
    T warp[32];
};
enum block_op { BLOCK_SUM, BLOCK_MOST };
/* v of all threads; every thread gets it. A barrier at both ends: `room` may be used again. */
template <enum block_op op, class T>
static __device__ __forceinline__ T block_reduce(T v, struct block_room<T> *room)
{
    const unsigned n_warp = blockDim.x / WARP;
    v = op == BLOCK_SUM ? warp_add(v) : (T)warp_most(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        room->warp[threadIdx.x / WARP] = v;
    __syncthreads();
    v = room->warp[0];
    for (unsigned i = 1; i < n_warp; i++)
        v = op == BLOCK_SUM ? v + room->warp[i] : (T)most_of(v, room->warp[i]);
    return v;
}

/* ---- asynchronous copies and matrix instructions ----
 * cp_async16: 16 bytes from device to shared memory, both aligned to 16; `n` < 16 fills the rest with
 * zeros, and n = 0 reads nothing. Fragments: PTX ISA, "mma.m16n8k16", "mma.m16n8k32", "ldmatrix". */
#ifdef QUIRE_CUDA_HOST
#define cp_async16(to, from, n)     emu_cp_async(to, from, (unsigned)(n))
#define cp_async_commit()           emu_cp_async_commit()
#define cp_async_wait(n)            emu_cp_async_wait(n)
#define ldmatrix_x4(out, row)       emu_ldmatrix_x4(out, row, false, EMU_SITE)
#define ldmatrix_x4_trans(out, row) emu_ldmatrix_x4(out, row, true, EMU_SITE)
#define mma_bf16(c, a, b)           emu_mma_bf16(c, a, b, EMU_SITE)
#define mma_f16(c, a, b)            emu_mma_f16(c, a, b, EMU_SITE)
#define mma_s8(c, a, b)             emu_mma_s8(c, a, b, EMU_SITE)
#define mma_e4m3_available          emu_has_e4m3
#define mma_e4m3_on_card(c, a, b)   emu_mma_e4m3(c, a, b, EMU_SITE)
#else
static __device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void cp_async16(void *to, const void *from, unsigned n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(n)
                 : "memory");
}
static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define cp_async_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
static __device__ __forceinline__ void ldmatrix_x4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Of our targets sm_89 alone has this instruction. ptxas takes it for sm_90 and sm_100 too and emulates it as
 * mma_e4m3_as_f16 does, in an order of its own and with more registers on sm_100; so they take that one, on purpose.
 * Hopper's tensor cores multiply e4m3 by wgmma (linear_sm90a.cu). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890 && __CUDA_ARCH__ < 900
#define mma_e4m3_available true
static __device__ __forceinline__ void mma_e4m3_on_card(float c[4], const uint32_t a[4],
                                                        const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
#define mma_e4m3_available        false
#define mma_e4m3_on_card(c, a, b) ((void)0)
#endif
#endif

/* Four e4m3 as two words of two f16, exactly. Before sm_89 in software: the bits are shifted and a factor of 2^8
 * corrects the bias, as in e4m3_value; a NaN becomes 480. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
static __device__ __forceinline__ void f16_of_e4m3(uint32_t to[2], uint32_t four)
{
    /* The instruction takes either half of a register: a shift in C would be one more. */
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(to[0]), "=r"(to[1])
        : "r"(four));
}
#else
static __device__ __forceinline__ void f16_of_e4m3(uint32_t to[2], uint32_t four)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t high = __byte_perm(four, 0, i ? 0x3424 : 0x1404); /* a byte, 8 zeros below */
        const uint32_t moved = (high & 0x80008000u) | (high & 0x7f007f00u) >> 1;
#ifdef QUIRE_CUDA_HOST
        to[i] = f16_of(f16_value((uint16_t)moved) * 256) |
                (uint32_t)f16_of(f16_value((uint16_t)(moved >> 16)) * 256) << 16;
#else
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(to[i]) : "r"(moved), "r"(0x5c005c00u));
#endif
    }
}
#endif

/* As mma_s8, of e4m3 in f32, as two products of f16. Which k each of the two multiplies is free as long
 * as a and b agree. */
static __device__ __forceinline__ void mma_e4m3_as_f16(float c[4], const uint32_t a[4],
                                                       const uint32_t b[2])
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        uint32_t low[2], high[2], x[2];
        f16_of_e4m3(low, a[2 * i]);
        f16_of_e4m3(high, a[2 * i + 1]);
        f16_of_e4m3(x, b[i]);
        const uint32_t w[4] = {low[0], high[0], low[1], high[1]};
        mma_f16(c, w, x);
    }
}
/* The same by the card's instruction if it has one (sm_89). */
static __device__ __forceinline__ void mma_e4m3(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    if (mma_e4m3_available)
        mma_e4m3_on_card(c, a, b);
    else
        mma_e4m3_as_f16(c, a, b);
}

#endif
