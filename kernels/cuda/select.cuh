/* SPDX-License-Identifier: Apache-2.0 */
/* select - a block of 1024 threads and one row of values: the largest, the best k, sums in a fixed order. The
 * device's counterpart of engine/worker/select.h, which has the definitions; each function states whether its bits
 * are equal. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_SELECT_CUH
#define QUIRE_KERNELS_CUDA_SELECT_CUH
#include "kernels/cuda/launch.cuh"

#define SELECT_THREADS 1024u
#define SELECT_WARPS   (SELECT_THREADS / WARP)
#define SELECT_TOP     1024u /* k at most */
#define SELECT_BUCKETS 2048u
#define SELECT_AHEAD   4u /* values that a thread requests before it uses the first */

struct select_item {
    float value;
    uint32_t id;
};
struct select_buckets {
    unsigned long long mass[SELECT_BUCKETS]; /* or counts */
    uint32_t count[SELECT_BUCKETS];
};
struct select_room {
    struct select_buckets buckets;
    struct select_item items[SELECT_TOP];
    unsigned long long scan[SELECT_WARPS];
    double sums[SELECT_WARPS];
    struct select_item best[SELECT_WARPS];
    uint32_t found, lowest, n_item;
    unsigned long long before;
};

/* fn(i, value(i)) for i < n: thread t has t, t + 1024, …, ascending. */
template <class V, class F>
static __device__ __forceinline__ void each_of(uint32_t n, V value, F fn)
{
    for (uint32_t base = threadIdx.x; base < n; base += SELECT_AHEAD * SELECT_THREADS) {
        decltype(value(0u)) v[SELECT_AHEAD];
#pragma unroll
        for (unsigned j = 0; j < SELECT_AHEAD; j++)
            if (base + j * SELECT_THREADS < n)
                v[j] = value(base + j * SELECT_THREADS);
#pragma unroll
        for (unsigned j = 0; j < SELECT_AHEAD; j++)
            if (base + j * SELECT_THREADS < n)
                fn(base + j * SELECT_THREADS, v[j]);
    }
}

/* Larger floats have larger keys, -0 that of 0; NaN has 0, below every number. */
static __device__ __forceinline__ uint32_t key_of(float f)
{
    const uint32_t u = __float_as_uint(f + 0.0f);
    return f != f ? 0 : u >> 31 ? ~u : u | 0x80000000u;
}

/* v of the threads before this one, and its own; *all: of the block. Integers: the order does not matter. */
static __device__ __forceinline__ unsigned long long
scan_block(unsigned long long v, struct select_room *r, unsigned long long *all)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (unsigned n = 1; n < WARP; n *= 2) {
        const unsigned long long other = __shfl_up_sync(ALL_LANES, v, n);
        v += lane >= n ? other : 0;
    }
    __syncthreads();
    if (lane == WARP - 1)
        r->scan[warp] = v;
    __syncthreads();
    unsigned long long before = 0, sum = 0;
#pragma unroll 4
    for (unsigned i = 0; i < SELECT_WARPS; i++) {
        before += i < warp ? r->scan[i] : 0;
        sum += r->scan[i];
    }
    *all = sum;
    return before + v;
}

/* Sum of f64: lanes by halves, warps ascending. */
static __device__ __forceinline__ double sum_block(double v, struct select_room *r)
{
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, half);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        r->sums[threadIdx.x / WARP] = v;
    __syncthreads();
    v = r->sums[0];
#pragma unroll 4
    for (unsigned i = 1; i < SELECT_WARPS; i++)
        v += r->sums[i];
    return v;
}

static __device__ __forceinline__ bool better(struct select_item a, struct select_item b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

/* The largest of x[0..n) and its lowest index; NaNs are skipped; *nan: there was one. All -inf or NaN: {-inf,
 * 0}. */
static __device__ __forceinline__ struct select_item best_of(const float *x, uint32_t n, bool *nan,
                                                             struct select_room *r)
{
    struct select_item best = {-INFINITY, 0};
    bool bad = false;
    each_of(
        n, [&](uint32_t i) { return x[i]; },
        [&](uint32_t i, float v) {
            bad |= v != v;
            if (v > best.value)
                best = {v, i};
        });
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2) {
        struct select_item other;
        other.value = __shfl_xor_sync(ALL_LANES, best.value, half);
        other.id = __shfl_xor_sync(ALL_LANES, best.id, half);
        best = better(other, best) ? other : best;
    }
    bad = __any_sync(ALL_LANES, bad);
    __syncthreads();
    if (threadIdx.x == 0)
        r->found = 0;
    if (threadIdx.x % WARP == 0)
        r->best[threadIdx.x / WARP] = best;
    __syncthreads();
    if (bad && threadIdx.x % WARP == 0)
        atomicOr(&r->found, 1u);
#pragma unroll 4
    for (unsigned i = 0; i < SELECT_WARPS; i++)
        best = better(r->best[i], best) ? r->best[i] : best;
    __syncthreads();
    *nan = r->found != 0;
    __syncthreads();
    if (best.value == -INFINITY)
        best.id = 0;
    return best;
}

/* ---- radix selection ----
 * Three passes over 11, 11 and 10 bits of the keys; a pass adds the measure of keys with the known prefix of the
 * edge to buckets, and a scan of the buckets from the top finds where the measure reaches the limit. */
struct radix {
    uint32_t key;              /* bits of the edge so far */
    unsigned long long before; /* measure of the keys above it */
    uint32_t n_equal;          /* after the last pass: number of values with the edge's key */
};

/* With filled buckets: find the first from the top at which the measure reaches `limit`, or the lowest nonempty one
 * if none does. */
static __device__ __forceinline__ void radix_find(struct radix *x, unsigned long long limit,
                                                  uint32_t shift, struct select_room *r)
{
    /* this thread's two buckets, from the top */
    const uint32_t high = SELECT_BUCKETS - 1 - 2 * threadIdx.x, low = high - 1;
    unsigned long long all;
    const unsigned long long mine = r->buckets.mass[high] + r->buckets.mass[low];
    const unsigned long long to_low = x->before + scan_block(mine, r, &all);
    const unsigned long long to_high = to_low - r->buckets.mass[low];
    if (threadIdx.x == 0) {
        r->found = 0; /* bucket + 1 */
        r->lowest = SELECT_BUCKETS;
    }
    __syncthreads();
    if (r->buckets.count[low] && to_low >= limit)
        atomicMax(&r->found, low + 1);
    if (r->buckets.count[high] && to_high >= limit)
        atomicMax(&r->found, high + 1);
    if (r->buckets.count[low])
        atomicMin(&r->lowest, low);
    else if (r->buckets.count[high])
        atomicMin(&r->lowest, high);
    __syncthreads();
    const uint32_t found = r->found ? r->found - 1 : r->lowest;
    if (found == low)
        r->before = to_low - r->buckets.mass[low];
    else if (found == high)
        r->before = to_high - r->buckets.mass[high];
    __syncthreads();
    x->before = r->before;
    x->n_equal = r->buckets.count[found % SELECT_BUCKETS];
    x->key |= found % SELECT_BUCKETS << shift;
    __syncthreads();
}

/* Fill r->buckets with the values value(i), i < n, whose keys begin as the edge does, by the bits of this level.
 * key(value): 0 = left out; measure(value): the selected measure. */
static __device__ __forceinline__ uint32_t radix_shift(unsigned level)
{
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}
template <class V, class K, class M>
static __device__ __forceinline__ void radix_fill(const struct radix &edge, unsigned level,
                                                  uint32_t n, V value, K key, M measure,
                                                  struct select_room *r)
{
    const uint32_t shift = radix_shift(level), width = level == 2 ? 10 : 11;
    const uint32_t known = level == 0 ? 0 : ~0u << (shift + width);
    for (uint32_t i = threadIdx.x; i < SELECT_BUCKETS; i += SELECT_THREADS) {
        r->buckets.mass[i] = 0;
        r->buckets.count[i] = 0;
    }
    __syncthreads();
    each_of(n, value, [&](uint32_t, float v) {
        const uint32_t k = key(v), b = k >> shift & ((1u << width) - 1);
        if (k == 0 || (k & known) != (edge.key & known))
            return;
        atomicAdd(&r->buckets.mass[b], measure(v));
        atomicAdd(&r->buckets.count[b], 1u);
    });
    __syncthreads();
}

/* filled: the first level's buckets, in r; the values are not read for it then. */
template <class V, class K, class M>
static __device__ __forceinline__ struct radix
radix_edge(uint32_t n, V value, unsigned long long limit, K key, M measure, bool filled,
           struct select_room *r)
{
    struct radix edge = {0, 0, 0};
#pragma unroll 1
    for (unsigned level = 0; level < 3; level++) {
        if (level || !filled)
            radix_fill(edge, level, n, value, key, measure, r);
        radix_find(&edge, limit, radix_shift(level), r);
    }
    return edge;
}

/* fn(i) for the first `n_keep` of the i whose value has the edge's key, in ascending order, and
 * drop(i) for the others. */
template <class V, class K, class F, class D>
static __device__ __forceinline__ void equals(uint32_t n, V value, uint32_t edge,
                                              unsigned long long n_keep, K key, F fn, D drop,
                                              struct select_room *r)
{
    unsigned long long seen = 0, all;
    for (uint32_t base = 0; base < n; base += SELECT_THREADS) {
        const uint32_t i = base + threadIdx.x;
        const bool equal = i < n && key(value(i < n ? i : 0)) == edge;
        const unsigned long long upto = seen + scan_block(equal, r, &all);
        if (equal && upto <= n_keep)
            fn(i);
        else if (equal)
            drop(i);
        seen += all;
    }
}

/* Sorts r->items, best first: a bitonic network over SELECT_TOP places. */
static __device__ __forceinline__ void sort_items(struct select_room *r)
{
    for (unsigned size = 2; size <= SELECT_TOP; size *= 2)
        for (unsigned step = size / 2; step; step /= 2) {
            __syncthreads();
            const unsigned i = threadIdx.x, j = i ^ step;
            if (j > i) {
                const struct select_item a = r->items[i], b = r->items[j];
                if (better(b, a) == ((i & size) == 0)) {
                    r->items[i] = b;
                    r->items[j] = a;
                }
            }
        }
    __syncthreads();
}

/* r->items = the best min(k, numbers among them) of at(i), i < n, best first; returns how many. Of equal values those
 * of the lowest i, which must be those of the lowest ids. The same items in the same order as select_top. */
template <class A>
static __device__ __forceinline__ uint32_t top_of(uint32_t n, A at, uint32_t k,
                                                  struct select_room *r)
{
    auto key = [](float f) { return key_of(f); };
    auto value = [&](uint32_t i) { return at(i).value; };
    const struct radix edge = radix_edge(
        n, value, k, key, [](float) { return 1ull; }, false, r);
    if (threadIdx.x == 0)
        r->n_item = 0;
    r->items[threadIdx.x] = {-INFINITY, UINT32_MAX};
    __syncthreads();
    if (edge.key == 0)
        return 0; /* no number at all */
    each_of(n, at, [&](uint32_t, struct select_item item) {
        if (key_of(item.value) > edge.key)
            r->items[atomicAdd(&r->n_item, 1u)] = item;
    });
    __syncthreads();
    equals(
        n, value, edge.key, k - edge.before, key,
        [&](uint32_t i) { r->items[atomicAdd(&r->n_item, 1u)] = at(i); }, [](uint32_t) {}, r);
    sort_items(r);
    return r->n_item;
}

#endif
