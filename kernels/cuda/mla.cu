/* SPDX-License-Identifier: Apache-2.0 */
/* mla, mla_store: attention over a cache of latents (ops_mla.h), for decoding.
 *
 * A token's vector is K and V of all heads: a tile of 32 positions is read once into shared memory and
 * multiplied twice, by tensor cores (mma.sync m16n8k16), for R heads (16, or 32 where shared
 * memory and the number of heads allow):
 *
 *     S = q C^T                  R x 32: a warp has 16 x 8 of it, over all of n_key
 *     m, p = exp(S - m), l += p  a warp a row at a time, a lane a position
 *     acc = acc * factor + p C[:, 0 … n_value-1]            a warp has R x n_value / WARPS
 *
 * with q and p in bf16, for a cache of e4m3 in f16 (attention_warp.cuh); S, p and the factors lie in shared memory
 * between the steps. Splits of 256 positions, partial results and their folding are those of attention.cu (plan.h, with
 * one KV head and head_dim n_value); tiles and splits begin at absolute positions, so a row's bits do not depend on R,
 * on the batch or the chunk. The plan's pieces have 16 rows: a block computes those whose row is a multiple of R.
 *
 * Shared memory (mla_shared), n_key 576, bf16:       R 16       R 32
 *     q      [R] rows of 1168 bytes (row_of)          18.3 KiB   36.5 KiB
 *     tiles  2 x [32] rows; one is in flight          73         73
 *     S, p, factors, M and L                           3.8        7.6
 *     all                                             95.1      117.1
 * e4m3 tiles are loaded as bytes, 2 x 18 KiB, and widened into one of f16: 95 and 117 KiB too.
 * Bytes: 2 n_key a position and sequence (e4m3: n_key), once for R heads; the limit is that by the bandwidth.
 * FLOP: 2 (n_key + n_value) a head and position.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/attention_warp.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/mla_tile.cuh"
extern "C" {
#include "kernels/cuda/plan.h"
#include "kernels/ops/ops_mla.h"
}

#define ANY_ROWS  4u
#define ANY_LANES (KERN_MLA_KEY_MAX / WARP)

template <int K, enum dtype KV>
struct mla_tiles { /* e4m3 */
                   uint8_t raw[2][MLA_TILE][K]; struct row_of<K> wide[MLA_TILE];
};
template <int K> struct mla_tiles<K, DT_BF16> {
    struct row_of<K> rows[2][MLA_TILE];
};
template <int K, int R, enum dtype KV>
struct alignas(128) mla_shared {
    struct row_of<K> q[R]; mla_tiles<K, KV> tiles; float s[R][MLA_TILE + 4]; struct row_of<MLA_TILE>
        p[R];
    float factor[R];
    struct folded fold[R];
};

struct mla_piece {
    struct attention_seq seq;
    uint32_t row, n_row, end; /* rows of the sequence: query tokens x heads; end of its context */
};

/* Row r of the block sees positions 0 … this; -1: there is no such row. */
static __device__ __forceinline__ int mla_last(const struct mla_args &a, const struct mla_piece &p,
                                               uint32_t r)
{
    return p.row + r < p.n_row ? (int)(p.seq.start + (p.row + r) / a.n_head) : -1;
}

template <int K, int R, bool F16>
static __device__ __forceinline__ void mla_load_q(struct row_of<K> *to, const struct mla_args &a,
                                                  const struct mla_piece &p)
{
    for (uint32_t i = threadIdx.x; i < R * K / 2; i += mla_form<R>::warps * WARP) {
        const uint32_t r = i / (K / 2), d = i % (K / 2) * 2, at = p.row + r;
        uint32_t pair = 0;
        if (at < p.n_row) {
            const float *q =
                a.q + (p.seq.row + at / a.n_head) * a.q_stride + (size_t)(at % a.n_head) * K + d;
            pair = pair_of<F16>(q[0], q[1]);
        }
        *(uint32_t *)(chunk_at<K>(to, r, d / 8) + d % 8) = pair;
    }
}

/* Asynchronous copy of one tile to a stage; zeros past the context. */
template <int K, int R, enum dtype KV>
static __device__ __forceinline__ void mla_load(mla_tiles<K, KV> &t, unsigned stage,
                                                const struct mla_args &a, const struct mla_piece &p,
                                                uint32_t tile)
{
    const unsigned bytes = KV == DT_BF16 ? 2 * K : K, chunks = bytes / 16;
    for (uint32_t i = threadIdx.x; i < MLA_TILE * chunks; i += mla_form<R>::warps * WARP) {
        const uint32_t row = i / chunks, c = tile * MLA_TILE + row;
        const bool there = c < p.end;
        const size_t token =
            there ? (size_t)p.seq.blocks[c / KERN_BLOCK] * KERN_BLOCK + c % KERN_BLOCK : 0;
        const char *from = (const char *)a.cache + token * bytes + (size_t)(i % chunks) * 16;
        if constexpr (KV == DT_BF16)
            cp_async16(chunk_at<K>(t.rows[stage], row, i % chunks), from, there ? 16 : 0);
        else
            cp_async16(&t.raw[stage][row][i % chunks * 16], from, there ? 16 : 0);
    }
    cp_async_commit();
}

template <int K, int R, enum dtype KV>
static __device__ __forceinline__ const struct row_of<K> *mla_rows(mla_tiles<K, KV> &t,
                                                                   unsigned stage) {
    if constexpr (KV == DT_BF16) {
        return t.rows[stage];
    } else {
        for (uint32_t i = threadIdx.x; i < MLA_TILE * K / 16; i += mla_form<R>::warps * WARP) {
            const uint32_t row = i / (K / 16), c = i % (K / 16);
            widen_chunk<K, KV>(t.wide, row, c, &t.raw[stage][row][c * 16]);
        }
        __syncthreads();
        return t.wide;
    }
}

/* ---- store of a split ---- */
struct mla_room { /* workspace */
    float *partials, *totals;
};

template <int K, int V, int R, enum dtype KV>
static __device__ __forceinline__ void mla_end(mla_shared<K, R, KV> &s, mla_acc<V, R> &acc,
                                               const struct mla_args &a, const struct mla_piece &p,
                                               const struct plan_piece &piece,
                                               const struct mla_room &room, bool last)
{
    mla_pairs<V, R>(acc, [&](unsigned r, unsigned d, unsigned i, const float *pair) {
        const uint32_t at = p.row + r;
        const struct folded f = s.fold[r];
        if (at >= p.n_row)
            return;
        if (piece.partial != PLAN_NO_PARTIAL) {
            float *to = room.partials + ((size_t)piece.partial + at) * (V + 2);
            *(float2 *)(to + d) = make_float2(pair[0], pair[1]);
            if (d == 0)
                *(float2 *)(to + V) = make_float2(f.m, f.l);
            return;
        }
#pragma unroll
        for (unsigned j = 0; j < 2; j++) {
            float *o = mla_total<R>(room.totals, V, i + j);
            const float y = fold_value(f, f.old == 0 ? 0 : *o, pair[j]);
            if (last)
                store_as(a.out, a.out_dtype,
                         (p.seq.row + at / a.n_head) * a.out_stride + (size_t)(at % a.n_head) * V +
                             d + j,
                         y * (1.0f / f.l));
            else
                *o = y;
        }
    });
    mla_begin<V, R>(acc);
}

template <int K, int V, int R, enum dtype KV>
static __device__ __forceinline__ void
mla_attend(const struct mla_args &a, const struct plan_piece &piece, const struct mla_room &room,
           mla_shared<K, R, KV> &s)
{
    struct mla_piece p;
    float m[R / mla_form<R>::warps], l[R / mla_form<R>::warps];
    mla_acc<V, R> acc;
    p.seq = a.seqs[piece.seq];
    p.row = piece.row;
    p.n_row = p.seq.n_query * a.n_head;
    p.end = p.seq.start + p.seq.n_query;
    const uint32_t last_row = p.row + R < p.n_row ? p.row + R - 1 : p.n_row - 1;
    const uint32_t per_split = PLAN_SPLIT / MLA_TILE, most = p.seq.start + last_row / a.n_head;
    uint32_t tile = piece.split * per_split, end = (piece.split + piece.n_split) * per_split;
    end = end < most / MLA_TILE + 1 ? end : most / MLA_TILE + 1;
    mla_load_q<K, R, KV != DT_BF16>(s.q, a, p);
    if (threadIdx.x < R)
        s.fold[threadIdx.x] = {NONE, 0, 1, 0};
    mla_begin<V, R>(acc);
#pragma unroll
    for (unsigned i = 0; i < R / mla_form<R>::warps; i++) {
        m[i] = NONE;
        l[i] = 0;
    }
    if (tile < end)
        mla_load<K, R, KV>(s.tiles, tile % 2, a, p, tile);
    for (; tile < end; tile++) {
        if (tile + 1 < end)
            mla_load<K, R, KV>(s.tiles, (tile + 1) % 2, a, p, tile + 1);
        else
            cp_async_commit(); /* the wait counts it */
        cp_async_wait(1);
        __syncthreads();
        const struct row_of<K> *rows = mla_rows<K, R, KV>(s.tiles, tile % 2);
        mla_scores<K, R, KV != DT_BF16>(s.s, s.q, rows, a.scale);
        __syncthreads();
        mla_soften<R, KV != DT_BF16>(s, m, l, [&](unsigned r, float x) {
            return (int)(tile * MLA_TILE + threadIdx.x % WARP) <= mla_last(a, p, r) ? x : NONE;
        });
        __syncthreads();
        mla_values<K, V, R, KV != DT_BF16>(acc.x, s.p, s.factor, rows);
        const bool last = tile + 1 == end;
        if (last || (tile + 1) % per_split == 0) {
            mla_fold<R>(s.fold, m, l);
            mla_end<K, V, R, KV>(s, acc, a, p, piece, room, last);
        }
        __syncthreads(); /* before the stage is loaded again */
    }
    cp_async_wait(0);
}

template <int K, int V, int R, enum dtype KV>
static __global__ void __launch_bounds__(mla_form<R>::warps *WARP, 1)
    mla_kernel(const struct mla_args a, const struct mla_room room)
{
    await_inputs();
    SHARED_MEMORY(s, mla_shared<K, R, KV>);
    const struct plan_head *plan = (const struct plan_head *)a.plan;
    const struct plan_piece *small =
        (const struct plan_piece *)((const char *)plan + plan->small_at);
    const struct plan_piece *large =
        (const struct plan_piece *)((const char *)plan + plan->large_at);
    for (uint32_t i = blockIdx.x; i < plan->n_small; i += gridDim.x)
        if (small[i].row % R == 0)
            mla_attend<K, V, R, KV>(a, small[i], room, s);
    for (uint32_t i = blockIdx.x; i < plan->n_large; i += gridDim.x)
        for (uint32_t row = 0; row < PLAN_ROWS_LARGE; row += R) {
            struct plan_piece piece = large[i];
            piece.row += row;
            if (piece.row < a.seqs[piece.seq].n_query * a.n_head)
                mla_attend<K, V, R, KV>(a, piece, room, s);
        }
}

/* ---- other shapes, and f32: a warp a (row, head), one position at a time ---- */
static __device__ __forceinline__ float mla_cached(const struct mla_args &a, size_t at)
{
    return a.kv_dtype == DT_F8_E4M3 ? e4m3_value(((const uint8_t *)a.cache)[at])
                                    : load_as(a.cache, a.kv_dtype, at);
}

static __device__ __forceinline__ void mla_any_row(const struct mla_args &a,
                                                   const struct attention_seq &seq, uint32_t token,
                                                   uint32_t head)
{
    const uint32_t lane = threadIdx.x % WARP;
    const float *q = a.q + (seq.row + token) * a.q_stride + (size_t)head * a.n_key;
    float acc[ANY_LANES] = {}, m = NONE, l = 0;
    for (uint32_t c = 0; c <= seq.start + token; c++) {
        const size_t at =
            ((size_t)seq.blocks[c / KERN_BLOCK] * KERN_BLOCK + c % KERN_BLOCK) * a.n_key;
        float s = 0;
        for (uint32_t d = lane; d < a.n_key; d += WARP)
            s = fmaf(q[d], mla_cached(a, at + d), s);
        s = warp_sum(s) * a.scale;
        const float most = s > m ? s : m, factor = m == most ? 1 : expf(m - most);
        const float p = expf(s - most);
        l = l * factor + p;
        m = most;
#pragma unroll
        for (unsigned i = 0; i < ANY_LANES; i++)
            if (lane + i * WARP < a.n_value)
                acc[i] = fmaf(p, mla_cached(a, at + lane + i * WARP), acc[i] * factor);
    }
#pragma unroll
    for (unsigned i = 0; i < ANY_LANES; i++)
        if (lane + i * WARP < a.n_value)
            store_as(a.out, a.out_dtype,
                     (seq.row + token) * a.out_stride + (size_t)head * a.n_value + lane + i * WARP,
                     acc[i] * (1.0f / l));
}

/* Two blocks a multiprocessor are enough: for more the compiler spills on sm_80. */
static __global__ void __launch_bounds__(ANY_ROWS *WARP, 2) mla_any_kernel(const struct mla_args a)
{
    await_inputs();
    const size_t i = (size_t)blockIdx.x * ANY_ROWS + threadIdx.x / WARP;
    const uint32_t row = (uint32_t)(i / a.n_head);
    for (uint32_t s = 0; row < a.n_row && s < a.n_seq; s++) {
        const struct attention_seq seq = a.seqs[s];
        if (row >= seq.row && row < seq.row + seq.n_query)
            mla_any_row(a, seq, row - seq.row, (uint32_t)(i % a.n_head));
    }
}

/* ---- launches ---- */
template <int K, int V, int R, enum dtype KV>
static void mla_launch(const struct mla_args *a, const struct kern_exec *x)
{
    const size_t bytes = sizeof(mla_shared<K, R, KV>);
    const unsigned n_block = card_blocks(bytes, PLAN_WIDE_ROWS / R);
    const size_t totals = (size_t)n_block * R * V * sizeof(float);
    const struct mla_room room = {
        (float *)x->scratch, (float *)((char *)x->scratch + x->scratch_bytes / 16 * 16 - totals)};
    launch(mla_kernel<K, V, R, KV>, dim3(n_block), mla_form<R>::warps * WARP, bytes, x, *a, room);
    const struct fold_args f = {a->out,  a->out_dtype,  a->out_stride, a->seqs,   a->plan,
                                nullptr, room.partials, a->n_seq,      a->n_head, V};
    fold_launch(&f, a->plan_host, x);
}

template <int K, int V, enum dtype KV>
static void mla_by_rows(const struct mla_args *a, const struct kern_exec *x)
{
    if (a->n_head > 16 && card_shared_max() >= sizeof(mla_shared<K, 32, KV>))
        mla_launch<K, V, 32, KV>(a, x);
    else
        mla_launch<K, V, 16, KV>(a, x);
}

extern "C" void mla_cuda(const struct mla_args *a, const struct kern_exec *x)
{
    const bool deepseek = a->n_key == 576 && a->n_value == 512;
    if (a->n_seq == 0 || a->n_row == 0)
        return;
    if (deepseek && a->kv_dtype == DT_BF16)
        mla_by_rows<576, 512, DT_BF16>(a, x);
    else if (deepseek && a->kv_dtype == DT_F8_E4M3)
        mla_by_rows<576, 512, DT_F8_E4M3>(a, x);
    else
        launch(mla_any_kernel, dim3(div_up((size_t)a->n_row * a->n_head, ANY_ROWS)),
               ANY_ROWS * WARP, 0, x, *a);
}

static __global__ void __launch_bounds__(256) mla_store_kernel(const struct mla_store_args a)
{
    await_inputs();
    const uint32_t slot = a.slot[blockIdx.x];
    for (uint32_t d = threadIdx.x; slot != KERN_NO_SLOT && d < a.n_key; d += 256) {
        const float f = a.x[blockIdx.x * a.x_stride + d];
        const size_t at = (size_t)slot * a.n_key + d;
        if (a.kv_dtype == DT_F8_E4M3)
            ((uint8_t *)a.cache)[at] = e4m3_of(f);
        else
            store_as(a.cache, a.kv_dtype, at, f);
    }
}

extern "C" void mla_store_cuda(const struct mla_store_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(mla_store_kernel, dim3(a->n_row), 256, 0, x, *a);
}
