/* SPDX-License-Identifier: Apache-2.0 */
/* attention - one piece of attention.cu, from q to a partial result or the output: its rows and tiles, the stages
 * of K and V in shared memory, the loop over tiles, and the store of its sums. The computation of a warp on a tile:
 * attention_warp.cuh. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_ATTENTION_CUH
#define QUIRE_KERNELS_CUDA_ATTENTION_CUH
#include "kernels/cuda/attention_warp.cuh"
#include "kernels/cuda/layout.h"
extern "C" {
#include "kernels/cuda/plan.h"
}

extern "C" void attention_cuda(const struct attention_args *a, const struct kern_exec *x);
void attention_any_launch(const struct attention_args *a, const struct kern_exec *x);
/* Heads of 512, bf16, causal, without slopes. */
void attention_wide_launch(const struct attention_args *a, const struct kern_exec *x);
/* The small pieces of a plan, bf16 and heads of 64 or 128, by attention.cu. */
void attention_small_launch(const struct attention_args *a, const struct kern_exec *x);

/* ---- shared memory ---- */
template <int D> struct stages_of { /* for tiles of K or V */
    static const unsigned n = D <= 128 ? 3 : 2;
};
/* int8 and e4m3 are loaded without conversion, and widened one tile at a time. */
template <int D> struct raw_tile {
    uint8_t x[TILE][D];
    float scale[TILE]; /* int8 */
};
template <int D, dtype KV> struct kv_stages {
    struct raw_tile<D> raw[stages_of<D>::n];
    struct row_of<D> wide[TILE];
};
template <int D> struct kv_stages<D, DT_BF16> {
    struct row_of<D> rows[stages_of<D>::n][TILE];
};
template <int D, dtype KV, unsigned WARPS, total_place PLACE = total_of<D, WARPS>::place>
struct alignas(128) attention_shared_of {
    struct row_of<D> q[WARPS * 16];
    kv_stages<D, KV> kv;
};
template <int D, dtype KV, unsigned WARPS>
struct alignas(128) attention_shared_of<D, KV, WARPS, IN_SHARED> {
    struct row_of<D> q[WARPS * 16];
    kv_stages<D, KV> kv;
    float total[WARPS][D / 2][WARP]; /* private to each thread, 32 apart */
};
static_assert(sizeof(attention_shared_of<256, DT_BF16, 4>) <= 99 << 10, "sm_86 has no more");
static_assert(sizeof(attention_shared_of<256, DT_I8, 4>) <= 99 << 10, "sm_86 has no more");
static_assert(sizeof(attention_shared_of<128, DT_BF16, 4>) <= 99 << 10, "sm_86 has no more");

/* Of the warps that share the stages. */
template <unsigned WARPS> static __device__ __forceinline__ void team_sync(void)
{
    if (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* ---- rows and context of a piece ---- */
struct piece_at {
    struct attention_seq seq;
    uint32_t kv_head, group, end; /* end: of the sequence's context */
};
static __device__ __forceinline__ struct piece_at place_of(const struct attention_args &a,
                                                           uint32_t i_seq, uint32_t kv_head)
{
    struct piece_at p;
    p.seq = a.seqs[i_seq];
    p.kv_head = kv_head;
    p.group = a.n_head / a.n_kv_head;
    p.end = p.seq.start + p.seq.n_query;
    return p;
}
/* The first position of the context of a query at `pos`: that of its window or chunk, or below 0. */
static __device__ __forceinline__ int context_from(const struct attention_args &a, int pos)
{
    if (a.chunked && a.window)
        return pos - (int)((uint32_t)pos % a.window);
    return a.window ? pos + 1 - (int)a.window : 0;
}
/* By rows row … row + n - 1. */
static __device__ __forceinline__ struct seen
seen_by(const struct piece_at &p, const struct attention_args &a, uint32_t row, uint32_t n)
{
    const uint32_t n_row = p.seq.n_query * p.group, end = row + n < n_row ? row + n : n_row;
    const int least = context_from(a, (int)(p.seq.start + row / p.group));
    return {least > 0 ? least : 0, row < end ? (int)(p.seq.start + (end - 1) / p.group) : -1};
}

/* Tiles of a piece whose rows have this context: from … to - 1. */
struct tile_range {
    uint32_t from, to;
};
static __device__ __forceinline__ struct tile_range tiles_of(const struct plan_piece &piece,
                                                             const struct seen &s)
{
    const uint32_t per_split = PLAN_SPLIT / TILE;
    struct tile_range t = {piece.split * per_split, (piece.split + piece.n_split) * per_split};
    if (t.from < (uint32_t)s.least / TILE)
        t.from = (uint32_t)s.least / TILE;
    if (t.to > (uint32_t)(s.most + (int)TILE) / TILE)
        t.to = (uint32_t)(s.most + (int)TILE) / TILE;
    return t;
}

static __device__ __forceinline__ void rows_of_warp(struct warp_rows *r, const struct piece_at &p,
                                                    const struct attention_args &a, uint32_t row)
{
    const uint32_t n_row = p.seq.n_query * p.group, g = threadIdx.x % WARP / 4;
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t at = row + g + 8 * i;
        r->token[i] = at / p.group;
        r->head[i] = p.kv_head * p.group + at % p.group;
        r->last[i] = at < n_row ? (int)(p.seq.start + r->token[i]) : -1;
        r->first[i] = context_from(a, r->last[i]);
    }
    r->all = seen_by(p, a, row, 16);
    r->each.least = context_from(a, r->all.most);
    r->each.most = (int)(p.seq.start + row / p.group);
}

/* q of the team's rows, rounded to 16 bits; missing rows are zeros. */
template <int D, unsigned WARPS, bool F16>
static __device__ __forceinline__ void load_q(struct row_of<D> *to, const struct piece_at &p,
                                              const struct attention_args &a, uint32_t row)
{
    for (uint32_t i = threadIdx.x; i < WARPS * 16 * (D / 2); i += WARPS * WARP) {
        const uint32_t r = i / (D / 2), d = i % (D / 2) * 2, at = row + r;
        uint32_t pair = 0;
        if (at < p.seq.n_query * p.group) {
            const float *q = a.q + (p.seq.row + at / p.group) * a.q_stride +
                             (size_t)(p.kv_head * p.group + at % p.group) * D + d;
            pair = pair_of<F16>(q[0], q[1]);
        }
        *(uint32_t *)(chunk_at<D>(to, r, d / 8) + d % 8) = pair;
    }
}

/* The compiler would compute these offsets once and keep them in registers; heads of 64, whose q is in registers,
 * and of 80 have no registers left for them. */
template <int D> static __device__ __forceinline__ uint32_t place_in_tile(uint32_t i)
{
    return D == 64 || D == 80 ? anew(i) : i;
}

/* ---- asynchronous copy of one tile of K or V to shared memory; zeros past the context ---- */
template <int D, enum dtype KV>
static __device__ __forceinline__ void *chunk_of_stage(kv_stages<D, KV> &kv, unsigned stage,
                                                       uint32_t row, uint32_t c)
{
    if constexpr (KV == DT_BF16)
        return chunk_at<D>(kv.rows[stage], row, c);
    else
        return &kv.raw[stage].x[row][c * 16];
}

/* mine: a lane's block of the tile's. left: positions of the context from the tile's first on. */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void load_rows(kv_stages<D, KV> &kv, unsigned stage,
                                                 const char *cache, size_t block_bytes,
                                                 uint32_t mine, int left)
{
    const unsigned chunks = KV == DT_BF16 ? D / 8 : D / 16, n = TILE * chunks;
#pragma unroll 4
    for (uint32_t base = 0; base < n; base += WARPS * WARP) {
        const uint32_t i = place_in_tile<D>(base + threadIdx.x), row = i < n ? i / chunks : 0;
        const uint32_t block = __shfl_sync(ALL_LANES, mine, row / KERN_BLOCK);
        const char *from =
            cache + block * block_bytes + (size_t)(row % KERN_BLOCK * chunks + i % chunks) * 16;
        void *to = chunk_of_stage<D, KV>(kv, stage, row, i % chunks);
        if (i < n)
            cp_async16(to, from, (int)row < left ? 16 : 0);
    }
}

/* The same if a thread has the same column of every row and its iterations end at block boundaries: it computes
 * only one address per block. WHOLE: at least TILE positions remain. */
template <int D, enum dtype KV, unsigned WARPS, bool WHOLE>
static __device__ __forceinline__ void load_columns(kv_stages<D, KV> &kv, unsigned stage,
                                                    const char *cache, size_t block_bytes,
                                                    uint32_t mine, int left)
{
    const unsigned chunks = KV == DT_BF16 ? D / 8 : D / 16, rows = WARPS * WARP / chunks;
    const uint32_t thread = place_in_tile<D>(threadIdx.x);
    const uint32_t c = thread % chunks, first = thread / chunks;
#pragma unroll
    for (uint32_t b = 0; b < TILE / KERN_BLOCK; b++) {
        const uint32_t block = __shfl_sync(ALL_LANES, mine, b);
        const char *from = cache + block * block_bytes + thread * 16;
#pragma unroll
        for (uint32_t r = 0; r < KERN_BLOCK; r += rows) {
            const uint32_t row = b * KERN_BLOCK + r + first;
            void *to = chunk_of_stage<D, KV>(kv, stage, row, c);
            cp_async16(to, from + r * chunks * 16, WHOLE || (int)row < left ? 16 : 0);
        }
    }
}

template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void load_tile(kv_stages<D, KV> &kv, unsigned stage,
                                                 const void *cache, const struct piece_at &p,
                                                 uint32_t n_kv_head, uint32_t tile)
{
    const unsigned chunks = KV == DT_BF16 ? D / 8 : D / 16, n_thread = WARPS * WARP;
    const size_t head_bytes = cuda_kv_head_bytes(KV, D), block_bytes = n_kv_head * head_bytes;
    const uint32_t lane = threadIdx.x % WARP, n_block = (p.end + KERN_BLOCK - 1) / KERN_BLOCK;
    const uint32_t at = tile * (TILE / KERN_BLOCK) + lane;
    const uint32_t mine = lane < TILE / KERN_BLOCK && at < n_block ? p.seq.blocks[at] : 0;
    const int left = (int)p.end - (int)(tile * TILE);
    const char *head = (const char *)cache + p.kv_head * head_bytes;
    if constexpr (n_thread % chunks || KERN_BLOCK * chunks % n_thread)
        load_rows<D, KV, WARPS>(kv, stage, head, block_bytes, mine, left);
    else if (left >= (int)TILE)
        load_columns<D, KV, WARPS, true>(kv, stage, head, block_bytes, mine, left);
    else
        load_columns<D, KV, WARPS, false>(kv, stage, head, block_bytes, mine, left);
    if constexpr (KV == DT_I8) { /* four scales a chunk */
        const uint32_t block = __shfl_sync(ALL_LANES, mine, lane % 16 / 4), row = lane * 4;
        if (threadIdx.x < TILE / 4) {
            const char *from =
                head + block * block_bytes + (size_t)KERN_BLOCK * D + row % KERN_BLOCK * 4;
            const int n = left - (int)row;
            cp_async16(&kv.raw[stage].scale[row], from, n > 3 ? 16 : n > 0 ? 4 * n : 0);
        }
    }
}

/* The tile of a stage in 16 bits. */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ const struct row_of<D> *tile_rows(kv_stages<D, KV> &kv,
                                                                    unsigned stage) {
    if constexpr (KV == DT_BF16) {
        return kv.rows[stage];
    } else {
        for (uint32_t n = threadIdx.x; n < TILE * D / 16; n += WARPS * WARP) {
            const uint32_t i = place_in_tile<D>(n), row = i / (D / 16), c = i % (D / 16);
            widen_chunk<D, KV>(kv.wide, row, c, &kv.raw[stage].x[row][c * 16]);
        }
        team_sync<WARPS>();
        return kv.wide;
    }
}

/* ---- where sums go ---- */
/* The last split is added to the total when the result is stored; for wide heads by way of the workspace, because
 * registers do not hold both. */
template <int D, enum total_place PLACE>
static __device__ __forceinline__ void
store_total(struct warp_state<D> &w, struct warp_total<D, PLACE> &total,
            const struct attention_args &a, const struct piece_at &p, const struct warp_rows &r)
{
    const bool direct = PLACE != IN_WORKSPACE;
    if (direct)
        fold_rows(w, total);
    else
        end_split(w, total);
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        const size_t at =
            (p.seq.row + r.token[i]) * a.out_stride + (size_t)r.head[i] * D + threadIdx.x % 4 * 2;
        if (r.last[i] < 0)
            continue;
        const float inverse = inverse_of(total.f[i], a.sinks, r.head[i]);
#pragma unroll
        for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
            for (unsigned j = 0; j < 2; j++) {
                const float o = *total_at(total, n, 2 * i + j), last = w.acc[n][2 * i + j];
                store_as(a.out, a.out_dtype, at + 8 * n + j,
                         (direct ? fold_value(total.f[i], o, last) : o) * inverse);
            }
    }
}

template <int D>
static __device__ __forceinline__ void
store_part(struct warp_state<D> &w, float *partials, const struct attention_args &a,
           const struct plan_piece &piece, const struct warp_rows &r)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        w.l[i] += __shfl_xor_sync(ALL_LANES, w.l[i], 1);
        w.l[i] += __shfl_xor_sync(ALL_LANES, w.l[i], 2);
        if (r.last[i] < 0)
            continue;
        float *to = partials +
                    ((size_t)piece.partial + r.token[i] * a.n_head + r.head[i]) * (D + 2) +
                    threadIdx.x % 4 * 2;
#pragma unroll
        for (unsigned n = 0; n < D / 8; n++)
            *(float2 *)(to + 8 * n) = make_float2(w.acc[n][2 * i], w.acc[n][2 * i + 1]);
        if (threadIdx.x % 4 == 0)
            *(float2 *)(to + D) = make_float2(w.m[i], w.l[i]);
    }
}

struct attention_room { /* workspace */
    float *partials;    /* [PLAN_PARTIAL_ROWS or fewer][head_dim + 2] */
    float *totals;      /* wide heads: [blocks][warps][16][head_dim] */
};
static inline void fold_attention(const struct attention_args *a, const struct kern_exec *x)
{
    const struct fold_args f = {a->out,
                                a->out_dtype,
                                a->out_stride,
                                a->seqs,
                                a->plan,
                                a->sinks,
                                (const float *)x->scratch,
                                a->n_seq,
                                a->n_head,
                                a->head_dim};
    fold_launch(&f, a->plan_host, x);
}

/* The item of this block after its item i, or one behind the last: of 0 … G - 1 number b, then of G … 2 G - 1
 * number G - 1 - b, and so on. Items are sorted, the longest first, so with round robin block 0 would have the longest
 * of each round: of one causal prompt of 2048 rows, 32 heads over 8, on 132 blocks, 158 units of time where the mean is
 * 126; this way the most is 127. */
static __device__ __forceinline__ uint32_t item_after(uint32_t i)
{
    return i / gridDim.x % 2 ? i + 2 * blockIdx.x + 1 : i + 2 * (gridDim.x - blockIdx.x) - 1;
}

/* ---- a piece ---- */
/* Order of loads: K0 V0 K1 V1 … Load n goes to stage n % STAGES and is issued STAGES - 1 iterations before its use:
 * K0 V0 at the start (with two stages: K0), then one load per iteration. */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void load_first(kv_stages<D, KV> &kv,
                                                  const struct attention_args &a,
                                                  const struct piece_at &p, uint32_t tile)
{
    load_tile<D, KV, WARPS>(kv, 0, a.k_cache, p, a.n_kv_head, tile);
    cp_async_commit();
    if (stages_of<D>::n == 3) {
        load_tile<D, KV, WARPS>(kv, 1, a.v_cache, p, a.n_kv_head, tile);
        cp_async_commit();
    }
}
/* In the iteration of K (half 0) or V (half 1) of a tile, which is in `stage`. */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void
load_next(kv_stages<D, KV> &kv, const struct attention_args &a, const struct piece_at &p,
          struct tile_range tiles, unsigned half, unsigned stage)
{
    const unsigned STAGES = stages_of<D>::n;
    const bool is_v = STAGES == 3 ? half == 1 : half == 0;
    const uint32_t tile = STAGES == 3 || half == 1 ? tiles.from + 1 : tiles.from;
    if (tile < tiles.to)
        load_tile<D, KV, WARPS>(kv, (stage + STAGES - 1) % STAGES, is_v ? a.v_cache : a.k_cache, p,
                                a.n_kv_head, tile);
    cp_async_commit(); /* also when empty: the wait counts them */
    cp_async_wait(stages_of<D>::n - 1);
}

template <int D>
static __device__ __forceinline__ void load_q_fragments(struct warp_q<D> &q,
                                                        const struct row_of<D> *rows)
{
    if (warp_q<D>::kept)
#pragma unroll
        for (unsigned i = 0; i < D / 16; i++)
            ldmatrix_x4(q.a[warp_q<D>::kept ? i : 0], a_matrix<D>(rows, i));
}

template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ warp_total<D, total_of<D, WARPS>::place>
total_for(attention_shared_of<D, KV, WARPS> &s, const struct attention_room &room)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    warp_total<D, total_of<D, WARPS>::place> total = {};
    if constexpr (total_of<D, WARPS>::place == IN_SHARED)
        total.far_o = &s.total[warp][0][lane];
    else if constexpr (total_of<D, WARPS>::place == IN_WORKSPACE)
        total.far_o = room.totals + ((size_t)blockIdx.x * WARPS + warp) * 16 * D + lane;
    total.f[0] = total.f[1] = {NONE, 0, 1, 0};
    return total;
}

template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void
attend_piece(const struct attention_args &a, const struct plan_piece &piece, uint32_t kv_head,
             const struct attention_room &room, attention_shared_of<D, KV, WARPS> &s)
{
    const uint32_t row = 16 * (threadIdx.x / WARP); /* this warp's first of the team's */
    const struct piece_at p = place_of(a, piece.seq, kv_head);
    struct warp_rows r;
    struct warp_q<D> q;
    struct warp_state<D> w;
    struct tile_range tiles = tiles_of(piece, seen_by(p, a, piece.row, 16 * WARPS));
    uint32_t stage = 0;
    if (tiles.from < tiles.to) /* on their way while q is loaded */
        load_first<D, KV, WARPS>(s.kv, a, p, tiles.from);
    rows_of_warp(&r, p, a, piece.row + row);
    load_q<D, WARPS, KV != DT_BF16>(s.q, p, a, piece.row);
    team_sync<WARPS>();
    load_q_fragments<D>(q, s.q + row);
    struct warp_total<D, total_of<D, WARPS>::place> total = total_for<D, KV, WARPS>(s, room);
    begin_split<D>(w);
    for (; tiles.from < tiles.to; tiles.from++) {
        float sc[8][4];
        const int c0 = (int)(tiles.from * TILE);
        const bool mine = c0 <= r.all.most && c0 + (int)TILE > r.all.least;
#pragma unroll
        for (unsigned half = 0; half < 2; half++) { /* K, then V */
            load_next<D, KV, WARPS>(s.kv, a, p, tiles, half, stage);
            team_sync<WARPS>();
            const struct row_of<D> *rows = tile_rows<D, KV, WARPS>(s.kv, stage);
            const float *scale = nullptr;
            if constexpr (KV == DT_I8)
                scale = s.kv.raw[stage].scale;
            if (mine && half == 0) {
                scores<D, KV != DT_BF16>(sc, q, s.q + row, rows);
                finish_scores(sc, r, a, c0, scale);
                soften<D>(sc, w);
            } else if (mine) {
                values<D, KV != DT_BF16>(sc, w, rows, scale);
            }
            team_sync<WARPS>(); /* before the stage is loaded again */
            stage = (stage + 1) % stages_of<D>::n;
        }
        if ((tiles.from + 1) % (PLAN_SPLIT / TILE) == 0 && tiles.from + 1 < tiles.to) {
            end_split(w, total);
            begin_split<D>(w);
        }
    }
    cp_async_wait(0);
    if (piece.partial != PLAN_NO_PARTIAL)
        store_part<D>(w, room.partials, a, piece, r);
    else
        store_total(w, total, a, p, r);
}

#endif
