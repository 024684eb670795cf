/* SPDX-License-Identifier: Apache-2.0 */
/* hopper - sm_90a's instructions that CUDA has no function for: mbarriers, tensor copies, wgmma. Where
 * operands lie: hopper.h. Read by a host compiler they are tests/emu's (cuda_emu_hopper.h).
 *
 * Rules, beside launch.cuh's:
 *   - a kernel's body that uses them is within #ifdef HOPPER_CODE; for other targets it is empty and is
 *     never launched (CAP_SM90A)
 *   - wgmma: fence, products, commit, wait. Between the first and the wait nobody touches the
 *     accumulators or the words of A; what they read in shared memory may be written again after it
 *   - wgmma and the wait are for a whole warpgroup: the branch that leads there is the same for all
 * Source: PTX ISA 9.0, sections on mbarrier, cp.async.bulk.tensor, wgmma and setmaxnreg. */
#ifndef QUIRE_KERNELS_CUDA_HOPPER_CUH
#define QUIRE_KERNELS_CUDA_HOPPER_CUH
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/launch.cuh"
#ifdef QUIRE_CUDA_HOST
#include "cuda_emu_hopper.h"
#define HOPPER_CODE
#else
#include <cuda.h>
#include <cudaTypedefs.h>
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER_CODE
#endif
#endif

/* ---- tensor maps: made on the host, given to the kernel as a __grid_constant__ ---- */
#ifdef QUIRE_CUDA_HOST
typedef struct emu_tensor_map tensor_map;
static inline bool tensor_map_encode(tensor_map *map, const void *array, const struct map_shape *s)
{
    return emu_tensor_map_encode(map, array, 2, s->dim, s->stride, s->box, s->step);
}
#else
typedef CUtensorMap tensor_map;
/* False: the driver does not have it, or will not. */
static inline bool tensor_map_encode(tensor_map *map, const void *array, const struct map_shape *s)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (!encode &&
        (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000,
                                          cudaEnableDefault, &found) != cudaSuccess ||
         found != cudaDriverEntryPointSuccess)) {
        encode = nullptr;
        return false;
    }
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(array),
                  (const cuuint64_t *)s->dim, (const cuuint64_t *)s->stride, s->box, s->step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif

/* ---- instructions ----
 * barrier_wait: until the phase of this parity is over; of a new barrier the phase of parity 1 is. It
 * gives up after `patience` tries of 20 us at most (0: never), so that a barrier that is wrong is found
 * by its results.
 * tensor_copy: the box whose first element is (row, col) to shared memory, which begins at a multiple of
 * 128 bytes; its bytes count for `bar`.
 * wgmma_n<N>: acc [64, 8 N] (+)= A [64, 16] B [16, 8 N]; keep false: acc as it was does not matter.
 * trans: B is N-major.
 * hold: what computes these registers stays before it, what uses them behind it. The compiler does not
 * know that a product ends with the wait: hold before the fence what a product takes, and behind the
 * wait what it gives. */
#ifdef QUIRE_CUDA_HOST
#define shared_offset(p)                 emu_shared_address(p)
#define barrier_init(bar, n)             emu_barrier_init(bar, n)
#define barrier_init_done()              emu_fence_async()
#define barrier_arrive(bar)              emu_barrier_arrive(bar, 0)
#define barrier_arrive_bytes(bar, bytes) emu_barrier_arrive(bar, bytes)
#define barrier_wait(bar, parity, patience) \
    ((void)(patience), emu_barrier_wait(bar, parity, EMU_SITE))
#define tensor_copy(to, map, col, row, bar) emu_tensor_copy(to, map, col, row, bar)
#define wgmma_fence()                       emu_wgmma_fence()
#define wgmma_commit()                      emu_wgmma_commit()
#define wgmma_wait(n)                       emu_wgmma_wait(n, EMU_SITE)
template <unsigned N> static inline void registers_fewer(void)
{
}
template <unsigned N> static inline void registers_more(void)
{
}
template <unsigned N, class T> static inline void hold(T (&)[N][4])
{
}
#define wgmma_n8(acc, a, b, keep, trans)  emu_wgmma(&(acc)[0][0], 64, a, b, keep, trans, EMU_SITE)
#define wgmma_n16(acc, a, b, keep, trans) emu_wgmma(&(acc)[0][0], 128, a, b, keep, trans, EMU_SITE)
#else
#define shared_offset(p) shared_address(p)
template <unsigned N> static __device__ __forceinline__ void registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <unsigned N> static __device__ __forceinline__ void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
static __device__ __forceinline__ void barrier_init(uint64_t *bar, unsigned n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(n)
                 : "memory");
}
/* What was initialised is seen by the copy engine too. */
static __device__ __forceinline__ void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
static __device__ __forceinline__ void barrier_arrive_bytes(uint64_t *bar, unsigned bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
        "r"(bytes)
        : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *bar, unsigned parity,
                                                    unsigned patience)
{
    const unsigned at = shared_address(bar);
    unsigned done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, 20000;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!done && --patience);
}
static __device__ __forceinline__ void tensor_copy(void *to, const tensor_map *map, int col,
                                                   int row, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"((uint64_t)map), "r"(col), "r"(row), "r"(shared_address(bar))
                 : "memory");
}
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <unsigned N> static __device__ __forceinline__ void hold(float (&x)[N][4])
{
#pragma unroll
    for (unsigned i = 0; i < N * 4; i++)
        asm volatile("" : "+f"(x[i / 4][i % 4])::"memory");
}
template <unsigned N> static __device__ __forceinline__ void hold(uint32_t (&x)[N][4])
{
#pragma unroll
    for (unsigned i = 0; i < N * 4; i++)
        asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
}
#define wgmma_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

#define ACC4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define ACC32(d, n)                                                                             \
    ACC4(d, n), ACC4(d, n + 1), ACC4(d, n + 2), ACC4(d, n + 3), ACC4(d, n + 4), ACC4(d, n + 5), \
        ACC4(d, n + 6), ACC4(d, n + 7)
#define NAMES_0_31                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32_63                                                                              \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
static __device__ __forceinline__ void wgmma_n8(float acc[8][4], const uint32_t a[4], uint64_t b,
                                                bool keep, bool trans)
{
#define N64(t)                                                                       \
    asm volatile("{\n"                                                               \
                 ".reg .pred p;\n"                                                   \
                 "setp.ne.b32 p, %37, 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_0_31 \
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, " #t ";\n"                  \
                 "}"                                                                 \
                 : ACC32(acc, 0)                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)keep))
    if (trans)
        N64(1);
    else
        N64(0);
#undef N64
}
static __device__ __forceinline__ void wgmma_n16(float acc[16][4], const uint32_t a[4], uint64_t b,
                                                 bool keep, bool trans)
{
#define N128(t)                                                                       \
    asm volatile("{\n"                                                                \
                 ".reg .pred p;\n"                                                    \
                 "setp.ne.b32 p, %69, 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_0_31 \
                 ", " NAMES_32_63 "}, {%64, %65, %66, %67}, %68, p, 1, 1, " #t ";\n"  \
                 "}"                                                                  \
                 : ACC32(acc, 0), ACC32(acc, 8)                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)keep))
    if (trans)
        N128(1);
    else
        N128(0);
#undef N128
}
#endif

#endif
