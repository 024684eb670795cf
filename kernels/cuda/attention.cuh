/* SPDX-License-Identifier: Apache-2.0 */
/* attention - one piece of attention.cu, from q to a part or a result. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_ATTENTION_CUH
#define QUIRE_KERNELS_CUDA_ATTENTION_CUH
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layout.h"
extern "C" {
#include "kernels/cuda/plan.h"
}

#define TILE      64u /* positions */
#define FOLD_ROWS 4u  /* warps of a fold block */
#define LOG2E     1.4426950408889634f
#define NONE      (-INFINITY) /* the largest of no scores */

extern "C" void attention_cuda(const struct attention_args *a, const struct kern_exec *x);
void attention_any_launch(const struct attention_args *a, const struct kern_exec *x);
/* The small pieces of a plan, bf16 and heads of 64 or 128, by attention.cu. */
void attention_small_launch(const struct attention_args *a, const struct kern_exec *x);

/* ---- shared memory ---- */
template <int D> struct slots_of { /* tiles of K or V in shared memory; 99 KiB is what sm_86 has */
    static const unsigned n = D <= 128 ? 3 : 2;
};
/* A row in chunks of 16 bytes. The 8 rows that an ldmatrix reads at a time must lie in different banks:
 * rows are an odd number of chunks apart, or, where D / 8 is a multiple of 8 and a chunk to spare would
 * be wasted, chunk c of row r lies at c ^ r % 8. */
template <int D> struct row_of {
    static const bool turned = D / 8 % 8 == 0 && D <= 128; /* wider: no registers for it */
    static const unsigned chunks = turned ? D / 8 : (unsigned)(D / 8) | 1;
    uint16_t x[chunks * 8];
};
template <int D>
static __device__ __forceinline__ uint16_t *chunk_at(struct row_of<D> *rows, unsigned r, unsigned c)
{
    return &rows[r].x[(row_of<D>::turned ? c ^ r % 8 : c) * 8];
}
template <int D>
static __device__ __forceinline__ const uint16_t *chunk_at(const struct row_of<D> *rows, unsigned r,
                                                           unsigned c)
{
    return &rows[r].x[(row_of<D>::turned ? c ^ r % 8 : c) * 8];
}
template <int D, enum dtype KV>
struct kv_slots { /* int8 and e4m3 */
                  struct raw{
                      uint8_t x[TILE][D]; float scale[TILE]; /* int8 */
                  }
raw[slots_of<D>::n];
struct row_of<D> wide[TILE];
}
;
template <int D> struct kv_slots<D, DT_BF16> {
    struct row_of<D> rows[slots_of<D>::n][TILE];
};
/* Where the total of a warp's rows waits while a split is summed: D / 2 floats a thread beside the D / 2
 * of the split. Registers have room for both up to 80 columns; shared memory, within what sm_86 has,
 * up to 128; wider heads go to the workspace. IN_BOTH: half in registers, half in shared memory. */
enum total_place { IN_REGISTERS, IN_SHARED, IN_WORKSPACE, IN_BOTH };
template <int D> struct total_of {
    static const enum total_place place = D <= 80    ? IN_REGISTERS
                                          : D <= 128 ? IN_SHARED
                                                     : IN_WORKSPACE;
};
template <int D, enum dtype KV, unsigned WARPS, enum total_place PLACE = total_of<D>::place>
struct alignas(128) attention_shared_of { /* heads of 256 in bf16: all that sm_86 has */
    struct row_of<D> q[WARPS * 16];
    kv_slots<D, KV> kv;
};
template <int D, enum dtype KV, unsigned WARPS>
struct alignas(128) attention_shared_of<D, KV, WARPS, IN_SHARED> {
    struct row_of<D> q[WARPS * 16]; kv_slots<D, KV> kv;
    float total[WARPS][D / 2][WARP]; /* each thread its own, 32 apart */
};

static_assert(sizeof(attention_shared_of<256, DT_BF16, 4>) <= 99 << 10, "sm_86 has no more");

template <unsigned WARPS> static __device__ __forceinline__ void team_sync(void)
{
    if (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

static __device__ __forceinline__ float exp2_of(float x)
{
#ifdef QUIRE_CUDA_HOST
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* ---- what a piece is about ---- */
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
struct seen { /* by some rows: the first position that any sees, and the last; -1: no such rows */
    int least, most;
};
struct warp_rows {         /* rows g and g + 8 of the warp's 16, g = lane / 4 */
    int last[2], first[2]; /* positions they see; last -1: no such row */
    struct seen all;       /* by the 16 */
    uint32_t token[2], head[2];
};

/* By rows row … row + n - 1. */
static __device__ __forceinline__ struct seen
seen_by(const struct piece_at &p, const struct attention_args &a, uint32_t row, uint32_t n)
{
    const uint32_t n_row = p.seq.n_query * p.group, end = row + n < n_row ? row + n : n_row;
    const int least = a.window ? (int)(p.seq.start + row / p.group) + 1 - (int)a.window : 0;
    return {least > 0 ? least : 0, row < end ? (int)(p.seq.start + (end - 1) / p.group) : -1};
}

/* Tiles of a piece whose rows see so much: from … to - 1. */
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
        r->first[i] = a.window ? r->last[i] + 1 - (int)a.window : 0;
    }
    r->all = seen_by(p, a, row, 16);
}

/* q of the team's rows, rounded to bf16; rows that are not there are zeros. */
template <int D, unsigned WARPS>
static __device__ __forceinline__ void load_q(struct row_of<D> *to, const struct piece_at &p,
                                              const struct attention_args &a, uint32_t row)
{
    for (uint32_t i = threadIdx.x; i < WARPS * 16 * (D / 2); i += WARPS * WARP) {
        const uint32_t r = i / (D / 2), d = i % (D / 2) * 2, at = row + r;
        uint32_t pair = 0;
        if (at < p.seq.n_query * p.group) {
            const float *q = a.q + (p.seq.row + at / p.group) * a.q_stride +
                             (size_t)(p.kv_head * p.group + at % p.group) * D + d;
            pair = bf16_pair(q[0], q[1]);
        }
        *(uint32_t *)(chunk_at<D>(to, r, d / 8) + d % 8) = pair;
    }
}

/* Places of a tile's pieces are divisions that the compiler would make once and keep: heads of 80 have no
 * registers for them. */
template <int D> static __device__ __forceinline__ uint32_t place_in_tile(uint32_t i)
{
    return D == 80 ? anew(i) : i;
}

/* ---- K or V of one tile on its way to shared memory; zeros past the context ---- */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void load_tile(kv_slots<D, KV> &kv, unsigned slot,
                                                 const void *cache, const struct piece_at &p,
                                                 uint32_t n_kv_head, uint32_t tile)
{
    const unsigned chunks = KV == DT_BF16 ? D / 8 : D / 16, n = TILE * chunks;
    const size_t head_bytes = cuda_kv_head_bytes(KV, D);
    const uint32_t lane = threadIdx.x % WARP, n_block = (p.end + KERN_BLOCK - 1) / KERN_BLOCK;
    const uint32_t at = tile * (TILE / KERN_BLOCK) + lane;
    const uint32_t mine = lane < TILE / KERN_BLOCK && at < n_block ? p.seq.blocks[at] : 0;
#pragma unroll 4
    for (uint32_t base = 0; base < n; base += WARPS * WARP) {
        const uint32_t i = place_in_tile<D>(base + threadIdx.x), row = i < n ? i / chunks : 0;
        const uint32_t block = __shfl_sync(ALL_LANES, mine, row / KERN_BLOCK);
        const char *from = (const char *)cache +
                           ((size_t)block * n_kv_head + p.kv_head) * head_bytes +
                           (size_t)(row % KERN_BLOCK * chunks + i % chunks) * 16;
        const unsigned there = tile * TILE + row < p.end ? 16 : 0;
        if (i < n) {
            if constexpr (KV == DT_BF16)
                cp_async16(chunk_at<D>(kv.rows[slot], row, i % chunks), from, there);
            else
                cp_async16(&kv.raw[slot].x[row][i % chunks * 16], from, there);
        }
    }
    if constexpr (KV == DT_I8) { /* four scales a chunk */
        const uint32_t block = __shfl_sync(ALL_LANES, mine, lane % 16 / 4), row = lane * 4;
        if (threadIdx.x < TILE / 4) {
            const char *from = (const char *)cache +
                               ((size_t)block * n_kv_head + p.kv_head) * head_bytes +
                               (size_t)KERN_BLOCK * D + row % KERN_BLOCK * 4;
            const int left = (int)p.end - (int)(tile * TILE + row);
            cp_async16(&kv.raw[slot].scale[row], from, left > 3 ? 16 : left > 0 ? 4 * left : 0);
        }
    }
}

/* The tile of a slot as bf16. One byte in four of a word at a time. */
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ const struct row_of<D> *tile_rows(kv_slots<D, KV> &kv,
                                                                    unsigned slot) {
    if constexpr (KV == DT_BF16) {
        return kv.rows[slot];
    } else {
        for (uint32_t word = threadIdx.x; word < TILE * D / 4; word += WARPS * WARP) {
            const uint32_t i = place_in_tile<D>(word), row = i / (D / 4), d = i % (D / 4) * 4;
            const uint32_t w = *(const uint32_t *)&kv.raw[slot].x[row][d];
            float f[4];
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                f[j] =
                    KV == DT_I8 ? (float)(int8_t)(w >> 8 * j) : e4m3_value((uint8_t)(w >> 8 * j));
            *(uint2 *)(chunk_at<D>(kv.wide, row, d / 8) + d % 8) =
                make_uint2(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]));
        }
        team_sync<WARPS>();
        return kv.wide;
    }
}

/* ---- a warp's arithmetic ---- */
template <int D>
struct warp_state {
    float acc[D / 8][4]; /* columns 8 n + 2 t, + 1 of row g, then of row g + 8; t = lane % 4 */
    float m[2], l[2];
};
template <int D> struct warp_q { /* as fragments when there are registers for them */
    static const bool kept = D <= 64;
    uint32_t a[kept ? D / 16 : 1][4];
};

/* Where lane `lane` points an ldmatrix.x4: 16 rows from `row`, chunks 2 k and 2 k + 1. */
template <int D>
static __device__ __forceinline__ const uint16_t *a_matrix(const struct row_of<D> *rows, unsigned k)
{
    const unsigned lane = threadIdx.x % WARP;
    return chunk_at<D>(rows, lane % 8 + lane / 8 % 2 * 8, 2 * k + lane / 16);
}
template <int D>
static __device__ __forceinline__ const uint16_t *b_matrix(const struct row_of<D> *rows, unsigned k)
{
    const unsigned lane = threadIdx.x % WARP;
    return chunk_at<D>(rows, lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2);
}

template <int D>
static __device__ __forceinline__ void scores(float s[8][4], const struct warp_q<D> &kept,
                                              const struct row_of<D> *q, const struct row_of<D> *k)
{
#pragma unroll
    for (unsigned n = 0; n < 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (unsigned i = 0; i < D / 16; i++) {
        uint32_t a[4], b[4];
        if (!warp_q<D>::kept)
            ldmatrix_x4(a, a_matrix<D>(q, i));
#pragma unroll
        for (unsigned n = 0; n < 4; n++) {
            ldmatrix_x4(b, b_matrix<D>(k + 16 * n, i));
            mma_bf16(s[2 * n], warp_q<D>::kept ? kept.a[warp_q<D>::kept ? i : 0] : a, b);
            mma_bf16(s[2 * n + 1], warp_q<D>::kept ? kept.a[warp_q<D>::kept ? i : 0] : a, b + 2);
        }
    }
}

/* Scores of the tile that starts at position c0: scaled, capped, masked. scale_k: int8 only. */
static __device__ __forceinline__ void finish_scores(float s[8][4], const struct warp_rows &r,
                                                     const struct attention_args &a, int c0,
                                                     const float *scale_k)
{
    const int t = (int)(threadIdx.x % 4) * 2;
#pragma unroll
    for (unsigned n = 0; n < 8; n++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const int at = (int)(8 * n) + t + (int)(j % 2), c = c0 + at;
            float f = s[n][j];
            if (scale_k)
                f *= scale_k[at];
            f *= a.scale;
            if (a.soft_cap > 0)
                f = a.soft_cap * tanhf(f / a.soft_cap);
            s[n][j] = c <= r.last[j / 2] && c >= r.first[j / 2] ? f : NONE;
        }
}

/* s becomes exp(s - m); m, l and acc are brought to the new m. */
template <int D>
static __device__ __forceinline__ void soften(float s[8][4], struct warp_state<D> &w)
{
    float factor[2], base[2];
    bool grown = false;
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        float most = w.m[i];
#pragma unroll
        for (unsigned n = 0; n < 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        factor[i] = w.m[i] == most ? 1.0f : exp2_of((w.m[i] - most) * LOG2E);
        base[i] = most == NONE ? 0 : -most * LOG2E;
        grown |= w.m[i] != most;
        w.m[i] = most;
        w.l[i] *= factor[i];
    }
#pragma unroll
    for (unsigned n = 0; n < 8; n++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            s[n][j] = exp2_of(fmaf(s[n][j], LOG2E, base[j / 2]));
            w.l[j / 2] += s[n][j];
        }
    if (__any_sync(ALL_LANES, grown))
#pragma unroll
        for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                w.acc[n][j] *= factor[j / 2];
}

/* acc += bf16(s) V. scale_v: int8 only. */
template <int D>
static __device__ __forceinline__ void values(float s[8][4], struct warp_state<D> &w,
                                              const struct row_of<D> *v, const float *scale_v)
{
    const unsigned t = threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
        uint32_t a[4], b[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned n = 2 * k + i / 2, j = i % 2 * 2;
            const float low = scale_v ? scale_v[8 * n + t] : 1,
                        high = scale_v ? scale_v[8 * n + t + 1] : 1;
            a[i] = bf16_pair(s[n][j] * low, s[n][j + 1] * high);
        }
#pragma unroll
        for (unsigned d = 0; d < D / 16; d++) {
            ldmatrix_x4_turned(b, a_matrix<D>(v + 16 * k, d));
            mma_bf16(w.acc[2 * d], a, b);
            mma_bf16(w.acc[2 * d + 1], a, b + 2);
        }
    }
}

template <int D> static __device__ __forceinline__ void begin_split(struct warp_state<D> &w)
{
#pragma unroll
    for (unsigned n = 0; n < D / 8; n++)
        w.acc[n][0] = w.acc[n][1] = w.acc[n][2] = w.acc[n][3] = 0;
    w.m[0] = w.m[1] = NONE;
    w.l[0] = w.l[1] = 0;
}

/* ---- parts put together ---- */
struct folded { /* M, L and the factors with which O takes a part */
    float m, l, old, part;
};
static __device__ __forceinline__ void fold_in(struct folded *f, float m, float l)
{
    const float most = fmaxf(f->m, m);
    f->old = 1;
    f->part = 0;
    if (m == NONE)
        return; /* all of it was masked */
    f->old = f->m == NONE ? 0 : exp2_of((f->m - most) * LOG2E);
    f->part = f->m == NONE ? 1 : exp2_of((m - most) * LOG2E);
    f->l = f->m == NONE ? l : fmaf(l, f->part, f->l * f->old);
    f->m = most;
}
/* O with one element of a part; `first`: there is no O yet. */
static __device__ __forceinline__ float fold_value(const struct folded &f, float o, float part)
{
    return f.part == 0 ? o : f.old == 0 ? part : fmaf(part, f.part, o * f.old);
}

/* 1 / L, with the sink of head `head` in L. */
static __device__ __forceinline__ float inverse_of(const struct folded &f,
                                                   const struct attention_args &a, uint32_t head)
{
    return 1.0f / (a.sinks ? f.l + exp2_of((a.sinks[head] - f.m) * LOG2E) : f.l);
}

/* A row's parts lie `step` floats apart: [head_dim] acc, m, l. The result goes to a.out from element
 * `to`. */
static __device__ __forceinline__ void fold_row(const struct attention_args &a, const float *part,
                                                size_t step, uint32_t n_split, uint32_t head,
                                                size_t to)
{
    const uint32_t lane = threadIdx.x % WARP, head_dim = a.head_dim;
    float o[8] = {};
    struct folded f = {NONE, 0, 1, 0};
    for (uint32_t s = 0; s < n_split; s++, part += step) {
        fold_in(&f, part[head_dim], part[head_dim + 1]);
#pragma unroll
        for (unsigned i = 0; i < 8; i++)
            if (lane + i * WARP < head_dim)
                o[i] = fold_value(f, o[i], part[lane + i * WARP]);
    }
    const float inverse = inverse_of(f, a, head);
#pragma unroll
    for (unsigned i = 0; i < 8; i++)
        if (lane + i * WARP < head_dim)
            store_as(a.out, a.out_dtype, to + lane + i * WARP, o[i] * inverse);
}

template <int D, enum total_place PLACE = total_of<D>::place>
struct warp_total { /* of a warp's rows */
    static const unsigned kept = PLACE == IN_REGISTERS ? D / 8 : PLACE == IN_BOTH ? D / 16 : 0;
    float o[kept ? kept : 1][4];
    struct folded f[2];
    float *far_o; /* this thread's first of the others; the next is 32 on */
};
template <int D, enum total_place PLACE>
static __device__ __forceinline__ float *total_at(struct warp_total<D, PLACE> &t, unsigned n,
                                                  unsigned j)
{
    const unsigned kept = warp_total<D, PLACE>::kept;
    if constexpr (kept > 0)
        if (n < kept)
            return &t.o[n < kept ? n : 0][j];
    return t.far_o + (4 * (n - kept) + j) * WARP;
}

/* l over the four threads of a row; M, L and the factors of this split. */
template <int D, enum total_place PLACE>
static __device__ __forceinline__ void fold_rows(struct warp_state<D> &w,
                                                 struct warp_total<D, PLACE> &total)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        w.l[i] += __shfl_xor_sync(ALL_LANES, w.l[i], 1);
        w.l[i] += __shfl_xor_sync(ALL_LANES, w.l[i], 2);
        fold_in(&total.f[i], w.m[i], w.l[i]);
    }
}

/* A split that is not the last goes into the total. */
template <int D, enum total_place PLACE>
static __device__ __forceinline__ void end_split(struct warp_state<D> &w,
                                                 struct warp_total<D, PLACE> &total)
{
    fold_rows(w, total);
#pragma unroll
    for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            float *o = total_at(total, n, j);
            *o = fold_value(total.f[j / 2], *o, w.acc[n][j]);
        }
}

/* The last split goes into the total on its way out; of wide heads by way of the workspace: there
 * are no registers for both. */
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
        const float inverse = inverse_of(total.f[i], a, r.head[i]);
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

/* ---- a piece ---- */
struct attention_room { /* workspace */
    float *partials;    /* [PLAN_PARTIAL_ROWS or fewer][head_dim + 2] */
    float *totals;      /* wide heads: [blocks][warps][16][head_dim] */
};
template <int D, enum dtype KV, unsigned WARPS>
static __device__ __forceinline__ void
attend_piece(const struct attention_args &a, const struct plan_piece &piece, uint32_t kv_head,
             const struct attention_room &room, attention_shared_of<D, KV, WARPS> &s)
{
    const uint32_t warp = threadIdx.x / WARP;
    const struct piece_at p = place_of(a, piece.seq, kv_head);
    struct warp_rows r;
    rows_of_warp(&r, p, a, piece.row + 16 * warp);
    load_q<D, WARPS>(s.q, p, a, piece.row);
    team_sync<WARPS>();
    struct warp_q<D> q;
    if (warp_q<D>::kept)
#pragma unroll
        for (unsigned i = 0; i < D / 16; i++)
            ldmatrix_x4(q.a[warp_q<D>::kept ? i : 0], a_matrix<D>(s.q + 16 * warp, i));
    struct warp_state<D> w;
    struct warp_total<D> total = {
    };
    if constexpr (total_of<D>::place == IN_SHARED)
        total.far_o = &s.total[warp][0][threadIdx.x % WARP];
    else if constexpr (total_of<D>::place == IN_WORKSPACE)
        total.far_o =
            room.totals + ((size_t)blockIdx.x * WARPS + warp) * 16 * D + threadIdx.x % WARP;
    total.f[0] = total.f[1] = {NONE, 0, 1, 0};
    const struct tile_range tiles = tiles_of(piece, seen_by(p, a, piece.row, 16 * WARPS));
    uint32_t tile = tiles.from;
    const uint32_t end = tiles.to, per_split = PLAN_SPLIT / TILE;
    /* K of tile i is load 2 i, V is load 2 i + 1; load n goes to slot n % SLOTS, SLOTS - 1 ahead of its
     * use */
    const unsigned SLOTS = slots_of<D>::n;
    uint32_t slot = 0;
    if (tile < end) {
        load_tile<D, KV, WARPS>(s.kv, 0, a.k_cache, p, a.n_kv_head, tile);
        cp_async_commit();
        if (SLOTS == 3) {
            load_tile<D, KV, WARPS>(s.kv, 1, a.v_cache, p, a.n_kv_head, tile);
            cp_async_commit();
        }
    }
    begin_split<D>(w);
    for (; tile < end; tile++) {
        float sc[8][4];
        const int c0 = (int)(tile * TILE);
        const bool mine = c0 <= r.all.most && c0 + (int)TILE > r.all.least;
#pragma unroll
        for (unsigned half = 0; half < 2; half++) { /* K, then V */
            const bool next_v = SLOTS == 3 ? half == 1 : half == 0;
            const uint32_t next = SLOTS == 3 || half == 1 ? tile + 1 : tile;
            if (next < end)
                load_tile<D, KV, WARPS>(s.kv, (slot + SLOTS - 1) % SLOTS,
                                        next_v ? a.v_cache : a.k_cache, p, a.n_kv_head, next);
            cp_async_commit(); /* also when empty: the wait counts them */
            cp_async_wait(slots_of<D>::n - 1);
            team_sync<WARPS>();
            const struct row_of<D> *rows = tile_rows<D, KV, WARPS>(s.kv, slot);
            const float *scale = nullptr;
            if constexpr (KV == DT_I8)
                scale = s.kv.raw[slot].scale;
            if (mine && half == 0) {
                scores<D>(sc, q, s.q + 16 * warp, rows);
                finish_scores(sc, r, a, c0, scale);
                soften<D>(sc, w);
            } else if (mine) {
                values<D>(sc, w, rows, scale);
            }
            team_sync<WARPS>(); /* before the slot is loaded again */
            slot = (slot + 1) % SLOTS;
        }
        if ((tile + 1) % per_split == 0 && tile + 1 < end) {
            end_split(w, total);
            begin_split<D>(w);
        }
    }
    cp_async_wait(0);
    if (piece.partial != PLAN_NO_PARTIAL) {
        store_part<D>(w, room.partials, a, piece, r);
    } else {
        store_total(w, total, a, p, r);
    }
}

#endif
