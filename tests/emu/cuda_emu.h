/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_emu - CUDA's execution model on the CPU, for testing kernels without a card.
 *
 * kernels/cuda/launch.cuh includes this in place of CUDA's headers when a host compiler reads
 * it, so the .cu files are compiled as they are and run on host memory. A thread of a block is a
 * coroutine; it runs until it reaches a barrier or an operation of its warp, then another one is
 * picked at random (emu_seed), so that code which works in one order only fails. What is checked:
 *
 *     a barrier or warp operation that not all threads reach      here, with file and line
 *     threads of a warp at different operations, a partial mask   here
 *     two threads on one byte of shared memory and no barrier     cuda_emu_watch.h; tsan build
 *     an access outside a block's shared memory                   cuda_emu_watch.h; asan build
 *     shared memory that nothing wrote                            it is NaN at the start of a block
 *     cp.async whose end is not waited for                        copied in the wait, NaN before
 *     an index past an array within shared memory                 -fsanitize=bounds, in every build
 *     a kernel that does not wait for the one ahead               emu_awaits
 *     misaligned vectors, what lies past an array elsewhere       asan and ubsan builds
 * tests/emu/planted.cc has a bug of each kind and sees that it is found.
 *
 * Blocks run one after another in random order. What is not modelled: time, caches, memory order
 * weaker than the C++ of the host, more than one block in flight.
 * Kernels use the names below and no others of CUDA's. Threads: one. */
#ifndef QUIRE_TESTS_EMU_CUDA_EMU_H
#define QUIRE_TESTS_EMU_CUDA_EMU_H
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* ---- who I am ---- */
struct emu_thread {
    dim3 thread, block, block_dim, grid_dim;
};
extern emu_thread emu_self; /* of the thread that runs; the scheduler sets it */
#define threadIdx (emu_self.thread)
#define blockIdx  (emu_self.block)
#define blockDim  (emu_self.block_dim)
#define gridDim   (emu_self.grid_dim)

/* ---- launches: emu_launch returns when all blocks are done ---- */
extern uint64_t emu_seed;     /* of the order of threads and blocks; each launch advances it */
extern uint64_t emu_n_launch; /* launches so far */
extern uint64_t emu_n_switch; /* changes from one thread to another */
extern size_t emu_shared_max; /* bytes of shared memory a block may have; 99 KiB as on sm_89 */
typedef void emu_body(void *arg);
extern bool emu_awaits; /* a thread that ends without emu_await is an error */
void emu_await();       /* of the thread that runs; launch.cuh, "kernels that begin early" */
void emu_launch(dim3 grid, dim3 block, size_t shared_bytes, emu_body *body, void *arg);
struct emu_work {
    dim3 grid, block;
    size_t shared_bytes;
    emu_body *body;
    const void *kernel; /* the function that body calls, to name it */
};
/* Where it is set, kernels are given to it instead of being run: to a stream, with a copy of the n
 * bytes of arg. */
typedef void emu_give(void *stream, const emu_work *work, const void *arg, size_t n);
extern emu_give *emu_gives;
void emu_launch_on(void *stream, const emu_work &work, void *arg, size_t n);
/* This block's shared memory; it is an error when there is less than `bytes`. */
void *emu_shared(size_t bytes);

/* ---- operations of a block and of a warp (site: where in the source) ---- */
struct emu_site {
    const char *file;
    int line;
};
#define EMU_SITE           \
    (emu_site)             \
    {                      \
        __FILE__, __LINE__ \
    }
emu_site emu_last_site(unsigned thread); /* where thread number so and so last synchronised */
void emu_syncthreads(emu_site site);
void emu_syncwarp(unsigned mask, emu_site site);
/* All lanes' n words, in lane order, once every lane of the warp has given its own. */
void emu_gather(unsigned mask, const uint32_t *mine, uint32_t *all, unsigned n, emu_site site);
__attribute__((noreturn, format(printf, 1, 2))) void emu_fail(const char *fmt, ...);
static inline unsigned emu_lane()
{
    const dim3 t = emu_self.thread, n = emu_self.block_dim;
    return ((t.z * n.y + t.y) * n.x + t.x) % 32;
}

template <class T> static inline T emu_shuffle(unsigned mask, T v, unsigned from, emu_site site)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what the hardware shuffles");
    uint32_t mine[sizeof(T) / 4], all[32 * sizeof(T) / 4];
    memcpy(mine, &v, sizeof v);
    emu_gather(mask, mine, all, sizeof(T) / 4, site);
    memcpy(&v, all + from * (sizeof(T) / 4), sizeof v);
    return v;
}

static inline unsigned emu_ballot(unsigned mask, bool p, emu_site site)
{
    uint32_t mine = p, all[32], bits = 0;
    emu_gather(mask, &mine, all, 1, site);
    for (unsigned i = 0; i < 32; i++)
        bits |= all[i] << i;
    return bits;
}

#define __syncthreads()                emu_syncthreads(EMU_SITE)
#define __syncwarp()                   emu_syncwarp(~0u, EMU_SITE)
#define __shfl_sync(mask, v, lane)     emu_shuffle(mask, v, (lane) % 32, EMU_SITE)
#define __shfl_xor_sync(mask, v, bits) emu_shuffle(mask, v, emu_lane() ^ (bits), EMU_SITE)
/* As on the card: past either end a lane gets its own value. */
#define __shfl_up_sync(mask, v, n) \
    emu_shuffle(mask, v, emu_lane() < (unsigned)(n) ? emu_lane() : emu_lane() - (n), EMU_SITE)
#define __shfl_down_sync(mask, v, n) \
    emu_shuffle(mask, v, emu_lane() + (n) > 31 ? emu_lane() : emu_lane() + (n), EMU_SITE)
#define __ballot_sync(mask, p) emu_ballot(mask, p, EMU_SITE)
#define __any_sync(mask, p)    (emu_ballot(mask, p, EMU_SITE) != 0)
#define __all_sync(mask, p)    (emu_ballot(mask, p, EMU_SITE) == ~0u)

/* ---- atomics: what they return depends on the random order ---- */
enum emu_atomic_op { EMU_ADD, EMU_OR, EMU_EXCHANGE, EMU_MAX, EMU_MIN };
uint64_t emu_atomic(enum emu_atomic_op op, void *p, uint64_t v, size_t bytes, bool is_signed);
#define EMU_ATOMIC(name, op)                                                              \
    template <class T, class U> static inline T name(T *p, U v)                           \
    {                                                                                     \
        return (T)emu_atomic(op, p, (uint64_t)(T)v, sizeof(T), std::is_signed<T>::value); \
    }
EMU_ATOMIC(atomicAdd, EMU_ADD)
EMU_ATOMIC(atomicOr, EMU_OR)
EMU_ATOMIC(atomicExch, EMU_EXCHANGE)
EMU_ATOMIC(atomicMax, EMU_MAX)
EMU_ATOMIC(atomicMin, EMU_MIN)
#undef EMU_ATOMIC

/* ---- arithmetic ---- */
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline int __dp4a(int a, int b, int c) /* c + the sum of four products of signed bytes */
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)((unsigned)a >> 8 * i) * (int8_t)((unsigned)b >> 8 * i);
    return c;
}
/* Four bytes of the eight of `high`:`low`, chosen by the low three bits of each of four nibbles. */
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned choose)
{
    const uint64_t both = (uint64_t)high << 32 | low;
    unsigned y = 0;
    for (unsigned i = 0; i < 4; i++)
        y |= (unsigned)(both >> 8 * (choose >> 4 * i & 7) & 0xff) << 8 * i;
    return y;
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

/* ---- what launch.cuh has in PTX ---- */
/* The target is NaN until the wait that covers the copy; what is copied is what the source has
 * then. n_from: bytes of the source, the rest of the 16 is zeros. */
void emu_cp_async(void *shared, const void *global, unsigned n_from);
void emu_cp_async_commit();
void emu_cp_async_wait(
    unsigned n_pending); /* until at most so many groups of this thread are open */
struct emu_copies {
    struct copy {
        char *to;
        const char *from;
        unsigned n_from, group;
    };
    std::vector<copy> open;
    unsigned group; /* committed so far */
};
emu_copies *emu_my_copies(); /* of the thread that runs */

/* Fragments as in the PTX manual, "Matrix Fragments for mma.m16n8k16" and "… k32". */
void emu_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed, emu_site site);
void emu_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site);
void emu_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site);
void emu_mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2], emu_site site);
extern bool emu_has_e4m3; /* as sm_89; mma.sync of other cards has no e4m3 */
void emu_mma_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site);

#endif
