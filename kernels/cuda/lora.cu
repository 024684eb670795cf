/* SPDX-License-Identifier: Apache-2.0 */
/* lora_shrink_grouped, lora_expand_grouped: the low-rank adapters of a step's rows, all adapters in one
 * launch. Definitions: ops_lora.h. Tiles, rows and factors are read on the device, so that one recorded
 * launch serves every mix of adapters; blocks of tiles without rows end at once.
 *
 * shrink: t = scale * A x.
 *   Shape: a block of 8 warps has 4 rows of A, of all parts of an adapter one after the other, and up to 8
 *     rows of x. Lane l of warp w multiplies k = 256 w + 8 l … + 7 of each 2048. Shared: 1 KiB of sums.
 *   Order: a lane's k ascending, one fma each, from +0; lanes by halves; warps ascending. It depends on n_in
 *     only, so a row's bits do not depend on other rows.
 *   Bytes: A once a tile, x once for each 4 ranks, all but the first reading from L2. 8 rows of 8 adapters of
 *     rank 16, q, k and v of 4096 inputs, bf16: 3.1 MB of A, 0.8 MB of x from L2.
 * expand: y += B t.
 *   Shape: a block of 256 threads has 1024 columns of one part and up to 8 rows; a thread four neighbouring
 *     columns. Shared: 2 KiB, 64 ranks of t of each row.
 *   Order: of a column its ranks ascending, one fma each, from +0, then one addition: the reference's bits.
 *   Bytes: B once a tile, y in and out: 8 bytes a column and row.
 * Limit: bytes / bandwidth; with few rows the latency of a launch, and of tile, factors, A behind one another.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_lora.h"
}

#define THREADS 256u
#define WARPS   (THREADS / WARP)
#define ROWS    KERN_LORA_ROWS

/* A block's tile, and what its adapter has for the product. */
struct lora_work {
    const unsigned char *slot;
    const struct lora_slot_factors *f;
    const uint32_t *rows; /* [n_row] */
    uint32_t n_row;
};

static __device__ __forceinline__ struct lora_work work_of(const struct lora_slots &s)
{
    const struct lora_row_tile tile = s.tiles[blockIdx.y];
    struct lora_work w;
    w.slot = s.data + (tile.n_row ? tile.slot : 0) * s.bytes;
    w.f = (const struct lora_slot_factors *)(const void *)w.slot + s.product;
    w.rows = s.rows + tile.first;
    w.n_row = tile.n_row;
    return w;
}

/* The last row in place of a missing one, whose result is not stored. */
static __device__ __forceinline__ uint32_t row_at(const struct lora_work &w, uint32_t i)
{
    return w.rows[i < w.n_row ? i : w.n_row - 1];
}

/* ---- shrink ---- */

#define RANKS 4u /* of a block */
#define EACH  8u /* elements of a lane at a time */

struct shrink_shared {
    float sums[WARPS][ROWS * RANKS];
};

/* Eight neighbours as they lie in memory. */
template <enum dtype T> struct eight {
    uint4 v[T == DT_F32 ? 2 : 1];
};

template <enum dtype T>
static __device__ __forceinline__ struct eight<T> load8(const void *p, size_t i)
{
    const uint4 *from = (const uint4 *)(const void *)((const char *)p + i * (T == DT_F32 ? 4 : 2));
    struct eight<T> e;
#pragma unroll
    for (unsigned k = 0; k < sizeof e / sizeof *e.v; k++)
        e.v[k] = from[k];
    return e;
}

/* The same at any address, zeros from n on. */
template <enum dtype T>
static __device__ __forceinline__ struct eight<T> gather8(const void *p, size_t i, uint32_t n)
{
    uint32_t words[EACH] = {};
    struct eight<T> e;
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
        if (k < n && T == DT_F32)
            words[k] = ((const uint32_t *)p)[i + k];
        else if (k < n)
            words[k / 2] |= (uint32_t)((const uint16_t *)p)[i + k] << k % 2 * 16;
    }
#pragma unroll
    for (unsigned k = 0; k < sizeof e / sizeof *e.v; k++)
        e.v[k] = make_uint4(words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]);
    return e;
}

template <enum dtype T>
static __device__ __forceinline__ float value_of(const struct eight<T> &e, unsigned k)
{
    const uint4 v = e.v[T == DT_F32 ? k / 4 : 0];
    const unsigned i = T == DT_F32 ? k % 4 : k / 2;
    const uint32_t word = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    if (T == DT_F32)
        return __uint_as_float(word);
    const uint16_t half = (uint16_t)(k % 2 ? word >> 16 : word);
    return T == DT_F16 ? f16_value(half) : bf16_value(half);
}

/* Row j of all parts' A one after the other, the last one in place of those behind it. */
struct lora_factor {
    const unsigned char *a;
    float scale;
    bool is_there;
};
template <enum dtype T>
static __device__ __forceinline__ struct lora_factor factor_at(const struct lora_work &w,
                                                               uint32_t j)
{
    uint32_t part = 0;
    while (part + 1 < w.f->n_part && j >= w.f->parts[part].rank)
        j -= w.f->parts[part++].rank;
    const struct lora_slot_part p = w.f->parts[part];
    struct lora_factor to;
    to.is_there = j < p.rank;
    to.a = w.slot + p.a + (size_t)(to.is_there ? j : p.rank - 1) * w.f->n_in * (T == DT_F32 ? 4 : 2);
    to.scale = p.scale;
    return to;
}

template <enum dtype X, enum dtype A, unsigned N>
static __device__ __forceinline__ void shrink_rows(const struct lora_shrink_grouped_args &a,
                                                   const struct lora_work &w, bool whole,
                                                   struct shrink_shared &s)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_in = w.f->n_in;
    const uint32_t first = blockIdx.x * RANKS;
    float sum[N][RANKS] = {};
    const unsigned char *factor[RANKS];
#pragma unroll
    for (unsigned j = 0; j < RANKS; j++)
        factor[j] = factor_at<A>(w, first + j).a;
    for (uint32_t k = (warp * WARP + lane) * EACH; k < n_in; k += THREADS * EACH) {
        const uint32_t n = n_in - k < EACH ? n_in - k : EACH;
        struct eight<A> f[RANKS];
#pragma unroll
        for (unsigned j = 0; j < RANKS; j++)
            f[j] = whole ? load8<A>(factor[j], k) : gather8<A>(factor[j], k, n);
#pragma unroll
        for (unsigned r = 0; r < N; r++) {
            const size_t at = row_at(w, r) * a.x_stride + k;
            const struct eight<X> x = whole ? load8<X>(a.x, at) : gather8<X>(a.x, at, n);
#pragma unroll
            for (unsigned i = 0; i < EACH; i++)
#pragma unroll
                for (unsigned j = 0; j < RANKS; j++)
                    sum[r][j] = fmaf(value_of<X>(x, i), value_of<A>(f[j], i), sum[r][j]);
        }
    }
#pragma unroll
    for (unsigned i = 0; i < N * RANKS; i++) {
        const float all = warp_sum(sum[i / RANKS][i % RANKS]);
        if (lane == i % WARP)
            s.sums[warp][i] = all;
    }
}

template <enum dtype X, enum dtype A>
static __global__ void __launch_bounds__(THREADS)
    lora_shrink_kernel(const struct lora_shrink_grouped_args a, bool whole)
{
    await_inputs();
    SHARED_MEMORY(s, struct shrink_shared);
    const struct lora_work w = work_of(a.of);
    if (!w.n_row || !w.f->n_part || !factor_at<A>(w, blockIdx.x * RANKS).is_there)
        return; /* all of a block */
    const bool is_whole = whole && w.f->n_in % EACH == 0;
    if (w.n_row == 1)
        shrink_rows<X, A, 1>(a, w, is_whole, s);
    else
        shrink_rows<X, A, ROWS>(a, w, is_whole, s);
    __syncthreads();
    const uint32_t i = threadIdx.x, r = i / RANKS, j = blockIdx.x * RANKS + i % RANKS;
    if (r >= w.n_row)
        return;
    const struct lora_factor f = factor_at<A>(w, j);
    float sum = s.sums[0][i];
    for (unsigned v = 1; v < WARPS; v++)
        sum += s.sums[v][i];
    if (f.is_there)
        a.t[row_at(w, r) * a.t_stride + j] = sum * f.scale;
}

template <enum dtype X, enum dtype A>
static void shrink(const struct lora_shrink_grouped_args *a, const struct kern_exec *x)
{
    const size_t element = X == DT_F32 ? 4 : 2;
    const bool whole = ((uintptr_t)a->x | a->x_stride * element) % 16 == 0;
    launch(lora_shrink_kernel<X, A>, dim3(div_up(a->n_rank, RANKS), a->of.n_tile), THREADS,
           sizeof(struct shrink_shared), x, *a, whole);
}

template <enum dtype X>
static void shrink_of(const struct lora_shrink_grouped_args *a, const struct kern_exec *x)
{
    if (a->of.dtype == DT_F32)
        shrink<X, DT_F32>(a, x);
    else if (a->of.dtype == DT_BF16)
        shrink<X, DT_BF16>(a, x);
    else
        shrink<X, DT_F16>(a, x);
}

extern "C" void lora_shrink_grouped_cuda(const struct lora_shrink_grouped_args *a,
                                         const struct kern_exec *x)
{
    if (!a->n_rank || !a->of.n_tile)
        return;
    if (a->x_dtype == DT_F32)
        shrink_of<DT_F32>(a, x);
    else if (a->x_dtype == DT_BF16)
        shrink_of<DT_BF16>(a, x);
    else
        shrink_of<DT_F16>(a, x);
}

/* ---- expand ---- */

#define COLUMNS (4 * THREADS) /* of a block */
#define DEPTH   64u           /* ranks of t in shared memory */

struct expand_shared {
    float t[ROWS][DEPTH];
};

struct expand_place { /* of a block */
    uint32_t part;   /* n_part: none */
    uint32_t column; /* of the part, the block's first */
    uint32_t rank;   /* of t, the part's first */
};

static __device__ __forceinline__ struct expand_place place_of(const struct lora_work &w)
{
    struct expand_place p = {0, blockIdx.x, 0};
    while (p.part < w.f->n_part) {
        const uint32_t n = (w.f->parts[p.part].n_out + COLUMNS - 1) / COLUMNS;
        if (p.column < n)
            break;
        p.column -= n;
        p.rank += w.f->parts[p.part++].rank;
    }
    p.column *= COLUMNS;
    return p;
}

/* A part of t's rows to shared memory; a barrier at both ends. */
template <unsigned N>
static __device__ __forceinline__ void stage_t(const struct lora_expand_grouped_args &a,
                                               const struct lora_work &w, uint32_t rank,
                                               uint32_t n, struct expand_shared &s)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < N * DEPTH; i += THREADS)
        if (i % DEPTH < n)
            s.t[i / DEPTH][i % DEPTH] =
                a.t[row_at(w, i / DEPTH) * a.t_stride + rank + i % DEPTH];
    __syncthreads();
}

/* y's four columns from c on, of the part. */
static __device__ __forceinline__ void add4(float *y, const float sum[4], uint32_t c, uint32_t n)
{
    if ((uintptr_t)(y + c) % 16 == 0 && c + 4 <= n) {
        const float4 v = load4_as(y, DT_F32, c);
        store4_as(y, DT_F32, c,
                  make_float4(v.x + sum[0], v.y + sum[1], v.z + sum[2], v.w + sum[3]));
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        if (c + i < n)
            y[c + i] += sum[i];
}

template <enum dtype B, unsigned N>
static __device__ __forceinline__ void expand_rows(const struct lora_expand_grouped_args &a,
                                                   const struct lora_work &w,
                                                   struct expand_place at, struct expand_shared &s)
{
    const struct lora_slot_part p = w.f->parts[at.part];
    const uint32_t c = at.column + threadIdx.x * 4;
    const void *b = w.slot + p.b;
    const size_t panel = (size_t)(c / KERN_LORA_PANEL) * p.rank * KERN_LORA_PANEL +
                         c % KERN_LORA_PANEL; /* B's panels are whole */
    float sum[N][4] = {};
    for (uint32_t first = 0; first < p.rank; first += DEPTH) {
        const uint32_t n = p.rank - first < DEPTH ? p.rank - first : DEPTH;
        stage_t<N>(a, w, at.rank + first, n, s);
        if (c >= p.n_out)
            continue; /* to the barriers */
#pragma unroll 2
        for (uint32_t j = 0; j < n; j++) {
            const float4 f = load4_as(b, B, panel + (size_t)(first + j) * KERN_LORA_PANEL);
#pragma unroll
            for (unsigned r = 0; r < N; r++) {
                const float t = s.t[r][j];
                sum[r][0] = fmaf(t, f.x, sum[r][0]);
                sum[r][1] = fmaf(t, f.y, sum[r][1]);
                sum[r][2] = fmaf(t, f.z, sum[r][2]);
                sum[r][3] = fmaf(t, f.w, sum[r][3]);
            }
        }
    }
    if (c >= p.n_out)
        return;
#pragma unroll
    for (unsigned r = 0; r < N; r++)
        if (r < w.n_row)
            add4(a.y + row_at(w, r) * a.y_stride + p.col, sum[r], c, p.n_out);
}

template <enum dtype B>
static __global__ void __launch_bounds__(THREADS)
    lora_expand_kernel(const struct lora_expand_grouped_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct expand_shared);
    const struct lora_work w = work_of(a.of);
    if (!w.n_row)
        return; /* all of a block */
    const struct expand_place at = place_of(w);
    if (at.part == w.f->n_part)
        return;
    if (w.n_row == 1)
        expand_rows<B, 1>(a, w, at, s);
    else
        expand_rows<B, ROWS>(a, w, at, s);
}

extern "C" void lora_expand_grouped_cuda(const struct lora_expand_grouped_args *a,
                                         const struct kern_exec *x)
{
    /* each part may end with a block that is not full */
    const dim3 grid(div_up(a->n_col, COLUMNS) + KERN_LORA_PARTS - 1, a->of.n_tile);
    if (!a->n_col || !a->of.n_tile)
        return;
    if (a->of.dtype == DT_F32)
        launch(lora_expand_kernel<DT_F32>, grid, THREADS, sizeof(struct expand_shared), x, *a);
    else if (a->of.dtype == DT_BF16)
        launch(lora_expand_kernel<DT_BF16>, grid, THREADS, sizeof(struct expand_shared), x, *a);
    else
        launch(lora_expand_kernel<DT_F16>, grid, THREADS, sizeof(struct expand_shared), x, *a);
}
