/* SPDX-License-Identifier: Apache-2.0 */
/* hopper - sm_90a's instructions without a CUDA function: mbarriers, tensor copies, wgmma. Layouts of operands:
 * hopper.h. For a host compiler they are emulated by tests/emu (cuda_emu_hopper.h).
 *
 * Rules, beside launch.cuh's:
 *   - a kernel's body that uses them is within #ifdef HOPPER_CODE; for other targets it is empty and is
 *     never launched (CAP_SM90A)
 *   - wgmma: fence, products, commit, wait. Between the first product and the wait no instruction may access the
 *     accumulators or the words of A; operands in shared memory may be overwritten after the wait
 *   - wgmma and the wait are executed by a whole warpgroup: branches around them are uniform
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
    return emu_tensor_map_encode(map, array, s->rank, s->element_bytes, s->dim, s->stride, s->box,
                                 s->step);
}
#else
typedef CUtensorMap tensor_map;
/* False: the driver lacks the function, or it failed. */
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
    return encode(map,
                  s->element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                  s->rank, const_cast<void *>(array), (const cuuint64_t *)s->dim,
                  (const cuuint64_t *)s->stride, s->box, s->step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif

enum wgmma_kind { WGMMA_BF16, WGMMA_F16, WGMMA_I8, WGMMA_E4M3 };

/* ---- instructions ----
 * barrier_wait: until the phase of this parity is over; of a new barrier the phase of parity 1 is. It
 * gives up after `patience` tries of 20 us at most (0: never), so that a wrong barrier shows as a wrong result.
 * tensor_copy: the box whose first element is (row, col) to shared memory, which begins at a multiple of
 * 128 bytes; its bytes count for `bar`.
 * tensor_copy_of: the same of array number `i` of a map_several.
 * wgmma_tiles<K, N>: acc [64, N] (+)= A [64, 32 bytes] B [N, 32 bytes]^T, both in shared memory, columns are k; acc
 * f32, of int8 s32. The tensor cores determine the order and precision of sums: f32 for bf16 and f16, about 14 bits
 * for e4m3 (arXiv:2412.19437, section 3.3.2). wgmma_n<N>: acc [64, 8 N] (+)= A [64, 16] B [16, 8 N]; keep false:
 * the previous acc is ignored. trans: B is N-major.
 * hold: a compiler barrier for these registers. The compiler does not know that a product ends at the wait: hold a
 * product's inputs before the fence, and its results after the wait. */
#ifdef QUIRE_CUDA_HOST
#define shared_offset(p)                 emu_shared_address(p)
#define barrier_init(bar, n)             emu_barrier_init(bar, n)
#define barrier_init_done()              emu_fence_async()
#define barrier_arrive(bar)              emu_barrier_arrive(bar, 0)
#define barrier_arrive_bytes(bar, bytes) emu_barrier_arrive(bar, bytes)
#define barrier_wait(bar, parity, patience) \
    ((void)(patience), emu_barrier_wait(bar, parity, EMU_SITE))
#define tensor_copy(to, map, col, row, bar)       emu_tensor_copy(to, map, col, row, 0, bar)
#define tensor_copy_of(to, map, col, row, i, bar) emu_tensor_copy(to, map, col, row, i, bar)
#define shared_written()                          emu_fence_async()
#define wgmma_fence()                             emu_wgmma_fence()
#define wgmma_commit()                            emu_wgmma_commit()
#define wgmma_wait(n)                             emu_wgmma_wait(n, EMU_SITE)
template <unsigned N> static inline void registers_fewer(void)
{
}
template <unsigned N> static inline void registers_more(void)
{
}
template <unsigned N, class T> static inline void hold(T (&)[N][4])
{
}
template <enum wgmma_kind K, unsigned N, class T>
static inline void wgmma_tiles(T (&acc)[N / 8][4], uint64_t a, uint64_t b, bool keep)
{
    emu_wgmma_tiles(&acc[0][0], N, a, b, keep, (enum emu_kind)K, EMU_SITE);
}
template <unsigned N> static inline void hold(int (&)[N][4])
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
/* Make initialised barriers visible to the copy engine. */
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
static __device__ __forceinline__ void tensor_copy_of(void *to, const tensor_map *map, int col,
                                                      int row, int i, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"((uint64_t)map), "r"(col), "r"(row), "r"(i), "r"(shared_address(bar))
                 : "memory");
}
/* Make this thread's writes to shared memory visible to wgmma and the copy engine. */
static __device__ __forceinline__ void shared_written(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
template <unsigned N> static __device__ __forceinline__ void hold(int (&x)[N][4])
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

#define INT4(d, n) "+r"(d[n][0]), "+r"(d[n][1]), "+r"(d[n][2]), "+r"(d[n][3])
#define INT32(d, n)                                                                             \
    INT4(d, n), INT4(d, n + 1), INT4(d, n + 2), INT4(d, n + 3), INT4(d, n + 4), INT4(d, n + 5), \
        INT4(d, n + 6), INT4(d, n + 7)
#define NAMES_64_95                                                                              \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_96_127                                                                   \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "   \
    "%123, %124, %125, %126, %127"
/* words: of one instruction's types; ends: what follows the predicate */
#define TILES_128(PARTS, shape, words, ends)                                            \
    asm volatile("{\n"                                                                  \
                 ".reg .pred p;\n"                                                      \
                 "setp.ne.b32 p, %66, 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n128" shape "." words " {" NAMES_0_31 \
                 ", " NAMES_32_63 "}, %64, %65, p" ends ";\n"                           \
                 "}"                                                                    \
                 : PARTS(acc, 0), PARTS(acc, 8)                                         \
                 : "l"(a), "l"(b), "r"((unsigned)keep))
#define TILES_256(PARTS, shape, words, ends)                                                       \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, %130, 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n256" shape "." words " {" NAMES_0_31            \
                 ", " NAMES_32_63 ", " NAMES_64_95 ", " NAMES_96_127 "}, %128, %129, p" ends ";\n" \
                 "}"                                                                               \
                 : PARTS(acc, 0), PARTS(acc, 8), PARTS(acc, 16), PARTS(acc, 24)                    \
                 : "l"(a), "l"(b), "r"((unsigned)keep))
#define TILES_ANY(PARTS, shape, words, ends)  \
    if constexpr (N == 128)                   \
        TILES_128(PARTS, shape, words, ends); \
    else                                      \
        TILES_256(PARTS, shape, words, ends)
template <enum wgmma_kind K, unsigned N, class T>
static __device__ __forceinline__ void wgmma_tiles(T (&acc)[N / 8][4], uint64_t a, uint64_t b,
                                                   bool keep)
{
    static_assert(N == 128 || N == 256, "widths that are written out");
    if constexpr (K == WGMMA_BF16) {
        TILES_ANY(ACC32, "k16", "f32.bf16.bf16", ", 1, 1, 0, 0");
    } else if constexpr (K == WGMMA_F16) {
        TILES_ANY(ACC32, "k16", "f32.f16.f16", ", 1, 1, 0, 0");
    } else if constexpr (K == WGMMA_E4M3) {
        TILES_ANY(ACC32, "k32", "f32.e4m3.e4m3", ", 1, 1");
    } else {
        TILES_ANY(INT32, "k32", "s32.s8.s8", "");
    }
}
#undef TILES_ANY
#undef TILES_128
#undef TILES_256
#endif

#endif
