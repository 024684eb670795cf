/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with heads of 512 over a cache in bf16, by tensor cores (mma.sync m16n8k16, bf16): what a warp of
 * attention.cu holds in registers is divided between the four warps of a block, as in mla.cu.
 *
 * A block holds 16 rows of one KV head: query tokens x the heads that share it. For each tile of 32 positions:
 *
 *     S = q K^T                  16 x 32: a warp has 16 x 8 of it, over all of the head
 *     m, p = exp(S - m), l += p  a warp a row at a time, a lane a position; soft cap and mask before
 *     acc = acc * factor + bf16(p) V     a warp has 16 x 128
 *
 * with S, p and the factors in shared memory between the steps. K of the next tile is loaded while V of this one is
 * awaited and multiplied, and V while the next scores are computed. Plan, splits of 256 positions and their folding
 * are those of attention.cu; tiles and splits begin at absolute positions, so a row has the same bits alone, in a
 * batch and in any chunk. A piece of 128 rows is done in eighths.
 *
 * Shared memory: q 16.3 KiB, a tile of K and one of V 32.5 each, S, p, factors and folds 4: 85 KiB.
 * Bytes: K and V of the context once for 16 rows, 2 KiB a position. FLOP: 2048 a pair of row and position.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mla_tile.cuh"

#define WIDE       512
#define WIDE_ROWS  16
#define WIDE_WARPS 4u

struct alignas(128) wide_shared {
    struct row_of<WIDE> q[WIDE_ROWS];
    struct row_of<WIDE> k[MLA_TILE], v[MLA_TILE];
    float s[WIDE_ROWS][MLA_TILE + 4];
    struct row_of<MLA_TILE> p[WIDE_ROWS];
    float factor[WIDE_ROWS];
    struct folded fold[WIDE_ROWS];
};
static_assert(sizeof(struct wide_shared) <= 99 << 10, "sm_86 has no more");

/* q of the piece's rows, rounded to bf16; missing rows are zeros. */
static __device__ __forceinline__ void wide_load_q(struct row_of<WIDE> *to,
                                                   const struct attention_args &a,
                                                   const struct piece_at &p, uint32_t row)
{
    for (uint32_t i = threadIdx.x; i < WIDE_ROWS * (WIDE / 2); i += WIDE_WARPS * WARP) {
        const uint32_t r = i / (WIDE / 2), d = i % (WIDE / 2) * 2, at = row + r;
        uint32_t pair = 0;
        if (at < p.seq.n_query * p.group) {
            const float *q = a.q + (p.seq.row + at / p.group) * a.q_stride +
                             (size_t)(p.kv_head * p.group + at % p.group) * WIDE + d;
            pair = bf16_pair(q[0], q[1]);
        }
        *(uint32_t *)(chunk_at<WIDE>(to, r, d / 8) + d % 8) = pair;
    }
}

/* Asynchronous copy of one tile of K or V; zeros past the context. */
static __device__ __forceinline__ void wide_load(struct row_of<WIDE> *to, const void *cache,
                                                 const struct attention_args &a,
                                                 const struct piece_at &p, uint32_t tile)
{
    const unsigned chunks = WIDE / 8;
    for (uint32_t i = threadIdx.x; i < MLA_TILE * chunks; i += WIDE_WARPS * WARP) {
        const uint32_t row = i / chunks, c = tile * MLA_TILE + row;
        const bool there = c < p.end;
        const size_t block = there ? p.seq.blocks[c / KERN_BLOCK] : 0;
        const uint16_t *head = (const uint16_t *)cache +
                               (block * a.n_kv_head + p.kv_head) * ((size_t)KERN_BLOCK * WIDE);
        cp_async16(chunk_at<WIDE>(to, row, i % chunks),
                   head + (size_t)(c % KERN_BLOCK) * WIDE + i % chunks * 8, there ? 16 : 0);
    }
    cp_async_commit();
}

/* A score of a row at position c: capped, or NONE where the row does not see it. */
static __device__ __forceinline__ float wide_seen(const struct attention_args &a,
                                                  const struct piece_at &p, uint32_t row, int c,
                                                  float score)
{
    const int last = row < p.seq.n_query * p.group ? (int)(p.seq.start + row / p.group) : -1;
    if (c > last || c < context_from(a, last))
        return NONE;
    return a.soft_cap > 0 ? a.soft_cap * tanhf(score / a.soft_cap) : score;
}

/* The sums of a split into the totals, the output, or a partial result. */
static __device__ __forceinline__ void wide_end(wide_shared &s, mla_acc<WIDE, WIDE_ROWS> &acc,
                                                const struct attention_args &a,
                                                const struct piece_at &p,
                                                const struct plan_piece &piece,
                                                const struct attention_room &room, bool last)
{
    mla_pairs<WIDE, WIDE_ROWS>(acc, [&](unsigned r, unsigned d, unsigned i, const float *pair) {
        const uint32_t at = piece.row + r, token = at / p.group;
        const uint32_t head = p.kv_head * p.group + at % p.group;
        const struct folded f = s.fold[r];
        if (token >= p.seq.n_query)
            return;
        if (piece.partial != PLAN_NO_PARTIAL) {
            float *to =
                room.partials + ((size_t)piece.partial + token * a.n_head + head) * (WIDE + 2);
            *(float2 *)(to + d) = make_float2(pair[0], pair[1]);
            if (d == 0)
                *(float2 *)(to + WIDE) = make_float2(f.m, f.l);
            return;
        }
        const size_t to = (p.seq.row + token) * a.out_stride + (size_t)head * WIDE + d;
#pragma unroll
        for (unsigned j = 0; j < 2; j++) {
            float *o = mla_total<WIDE_ROWS>(room.totals, WIDE, i + j);
            const float y = fold_value(f, f.old == 0 ? 0 : *o, pair[j]);
            if (last)
                store_as(a.out, a.out_dtype, to + j, y * inverse_of(f, a.sinks, head));
            else
                *o = y;
        }
    });
    mla_begin<WIDE, WIDE_ROWS>(acc);
}

/* Tiles that a piece's 16 rows see. */
static __device__ __forceinline__ struct tile_range
wide_tiles(const struct attention_args &a, const struct piece_at &p, const struct plan_piece &piece)
{
    const uint32_t per_split = PLAN_SPLIT / MLA_TILE;
    const struct seen s = seen_by(p, a, piece.row, WIDE_ROWS);
    struct tile_range t = {piece.split * per_split, (piece.split + piece.n_split) * per_split};
    if (t.from < (uint32_t)s.least / MLA_TILE)
        t.from = (uint32_t)s.least / MLA_TILE;
    if (t.to > (uint32_t)s.most / MLA_TILE + 1)
        t.to = (uint32_t)s.most / MLA_TILE + 1;
    return t;
}

static __device__ __forceinline__ void wide_piece(const struct attention_args &a,
                                                  const struct plan_piece &piece, uint32_t kv_head,
                                                  const struct attention_room &room, wide_shared &s)
{
    const struct piece_at p = place_of(a, piece.seq, kv_head);
    const struct tile_range tiles = wide_tiles(a, p, piece);
    float m[WIDE_ROWS / WIDE_WARPS], l[WIDE_ROWS / WIDE_WARPS];
    mla_acc<WIDE, WIDE_ROWS> acc;
    wide_load_q(s.q, a, p, piece.row);
    if (threadIdx.x < WIDE_ROWS)
        s.fold[threadIdx.x] = {NONE, 0, 1, 0};
    mla_begin<WIDE, WIDE_ROWS>(acc);
#pragma unroll
    for (unsigned i = 0; i < WIDE_ROWS / WIDE_WARPS; i++) {
        m[i] = NONE;
        l[i] = 0;
    }
    if (tiles.from < tiles.to) {
        wide_load(s.k, a.k_cache, a, p, tiles.from);
        wide_load(s.v, a.v_cache, a, p, tiles.from);
    }
    for (uint32_t tile = tiles.from; tile < tiles.to; tile++) {
        const bool last = tile + 1 == tiles.to;
        cp_async_wait(1);
        __syncthreads();
        mla_scores<WIDE, WIDE_ROWS, false>(s.s, s.q, s.k, a.scale);
        __syncthreads(); /* K is read, S is there */
        if (last)
            cp_async_commit(); /* the wait counts it */
        else
            wide_load(s.k, a.k_cache, a, p, tile + 1);
        mla_soften<WIDE_ROWS, false>(s, m, l, [&](unsigned r, float x) {
            const int c = (int)(tile * MLA_TILE + threadIdx.x % WARP);
            return wide_seen(a, p, piece.row + r, c, x);
        });
        cp_async_wait(1);
        __syncthreads();
        mla_values<WIDE, WIDE, WIDE_ROWS, false>(acc.x, s.p, s.factor, s.v);
        if (last || (tile + 1) % (PLAN_SPLIT / MLA_TILE) == 0) {
            mla_fold<WIDE_ROWS>(s.fold, m, l);
            wide_end(s, acc, a, p, piece, room, last);
        }
        __syncthreads(); /* V, p and the folds are read */
        if (last)
            cp_async_commit();
        else
            wide_load(s.v, a.v_cache, a, p, tile + 1);
    }
    cp_async_wait(0);
    if (tiles.from >= tiles.to) { /* a split that a window leaves out */
        __syncthreads();
        wide_end(s, acc, a, p, piece, room, true);
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(WIDE_WARPS *WARP, 1)
    attention_wide_kernel(const struct attention_args a, const struct attention_room room)
{
    await_inputs();
    SHARED_MEMORY(s, wide_shared);
    const struct plan_head *plan = (const struct plan_head *)a.plan;
    const struct plan_piece *small =
        (const struct plan_piece *)((const char *)plan + plan->small_at);
    const struct plan_piece *large =
        (const struct plan_piece *)((const char *)plan + plan->large_at);
    const uint32_t parts = PLAN_ROWS_LARGE / WIDE_ROWS, group = a.n_head / a.n_kv_head;
    const uint32_t n_small = plan->n_small * a.n_kv_head;
    const uint32_t n_all = n_small + plan->n_large * parts * a.n_kv_head;
    for (uint32_t i = blockIdx.x; i < n_all; i += gridDim.x) {
        const uint32_t j = i < n_small ? i : i - n_small;
        struct plan_piece piece =
            i < n_small ? small[j / a.n_kv_head] : large[j / a.n_kv_head / parts];
        if (i >= n_small)
            piece.row += j / a.n_kv_head % parts * WIDE_ROWS;
        if (piece.row < a.seqs[piece.seq].n_query * group)
            wide_piece(a, piece, j % a.n_kv_head, room, s);
    }
}

void attention_wide_launch(const struct attention_args *a, const struct kern_exec *x)
{
    const unsigned n_block = card_blocks(sizeof(struct wide_shared), PLAN_WIDE_ROWS / WIDE_ROWS);
    const size_t totals = (size_t)n_block * WIDE_ROWS * WIDE * sizeof(float);
    const struct attention_room room = {
        (float *)x->scratch, (float *)((char *)x->scratch + x->scratch_bytes / 16 * 16 - totals)};
    launch(attention_wide_kernel, dim3(n_block), WIDE_WARPS * WARP, sizeof(struct wide_shared), x,
           *a, room);
    fold_attention(a, x);
}
