/* SPDX-License-Identifier: Apache-2.0 */
/* attention_warp - attention by one warp: 16 rows, tiles of K and V in shared memory, an online softmax, splits
 * folded into a total. Shared by attention.cu, attention_sm90a.cu (which multiplies by wgmma, whose fragments are
 * these of four warps) and mla.cu. Private to kernels/cuda.
 *
 * A lane (g, t) = (lane / 4, lane % 4) has of rows g and g + 8
 *     s[n][j]     scores, then weights: positions 8 n + 2 t, + 1 of row g (j = 0, 1), of row g + 8 (2, 3)
 *     acc[n][j]   columns of the split's sum, in the same places
 *     m[i], l[i]  the largest score so far (of the row), the sum of weights (of the lane's own positions)
 * where s of two mma, rounded to 16 bits, is the A of the next product without any shuffle. F16: tiles, q and weights
 * are f16 rather than bf16. So are those of caches of 8 bits, which f16 holds exactly and of which a card has a pair in
 * one instruction. Elements of q and scales of V must be below 65504 and 511 there. */
#ifndef QUIRE_KERNELS_CUDA_ATTENTION_WARP_CUH
#define QUIRE_KERNELS_CUDA_ATTENTION_WARP_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/ops_attention.h"
}

#define TILE  64u /* positions */
#define LOG2E 1.4426950408889634f
#define NONE  (-INFINITY) /* the largest of no scores */

/* ---- rows in shared memory ----
 * In chunks of 16 bytes. The 8 rows that an ldmatrix reads at a time must lie in different banks: rows are
 * an odd number of chunks apart, or, where D / 8 is a multiple of 8 and a chunk to spare would be wasted,
 * chunk c of row r lies at c ^ r % 8. */
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

/* Address of this lane for an ldmatrix.x4 of 16 rows and columns 16 k … 16 k + 15: as A of an mma, or transposed as
 * the B of two whose k are the rows; */
template <int D>
static __device__ __forceinline__ const uint16_t *a_matrix(const struct row_of<D> *rows, unsigned k)
{
    const unsigned lane = threadIdx.x % WARP;
    return chunk_at<D>(rows, lane % 8 + lane / 8 % 2 * 8, 2 * k + lane / 16);
}
/* as the B of two mma whose n are the rows. */
template <int D>
static __device__ __forceinline__ const uint16_t *b_matrix(const struct row_of<D> *rows, unsigned k)
{
    const unsigned lane = threadIdx.x % WARP;
    return chunk_at<D>(rows, lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2);
}

/* ---- a tile ---- */
struct
    seen { /* context of some rows: the first position of any row, and the last; -1: no such rows */
    int least, most;
};
struct warp_rows {         /* rows g and g + 8 of the warp's 16 */
    int last[2], first[2]; /* their context positions; last -1: no such row */
    struct seen all;       /* by any of the 16 */
    struct seen each;      /* by each existing row */
    uint32_t token[2], head[2];
};
template <int D> struct warp_state {
    float acc[D / 8][4];
    float m[2], l[2];
};
template <int D> struct warp_q { /* as fragments when there are registers for them */
    static const bool kept = D <= 64;
    uint32_t a[kept ? D / 16 : 1][4];
};

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

/* Two 16-bit floats in a word, `low` in the low half. */
template <bool F16> static __device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    if constexpr (F16) {
#ifdef QUIRE_CUDA_HOST
        return f16_of(low) | (uint32_t)f16_of(high) << 16;
#else
        uint32_t y;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
        return y;
#endif
    } else {
        return bf16_pair(low, high);
    }
}
template <bool F16>
static __device__ __forceinline__ void mma_pairs(float c[4], const uint32_t a[4],
                                                 const uint32_t b[2])
{
    if constexpr (F16)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
}

/* Four bytes of a cache as f16, two by two, exactly; int8 is divided by KV_I8_PART, so that weights times scales of V
 * times KV_I8_PART, the other factor, are in f16's range. */
#define KV_I8_PART 128.0f
template <enum dtype KV>
static __device__ __forceinline__ void f16_of_four(uint32_t to[2], uint32_t four)
{
    static_assert(KV == DT_I8 || KV == DT_F8_E4M3, "a cache of 8 bits");
    if constexpr (KV == DT_I8) { /* 1024 + 128 + x has x in the low byte: by 1 / 128, less 9 */
        const uint32_t from_0 = four ^ 0x80808080u;
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const uint32_t y = __byte_perm(from_0, 0x64646464u, i ? 0x4342 : 0x4140);
#ifdef QUIRE_CUDA_HOST
            to[i] = pair_of<true>(fmaf(f16_value((uint16_t)y), 1 / KV_I8_PART, -9),
                                  fmaf(f16_value((uint16_t)(y >> 16)), 1 / KV_I8_PART, -9));
#else
            asm("fma.rn.f16x2 %0, %1, %2, %3;"
                : "=r"(to[i])
                : "r"(y), "r"(0x20002000u), "r"(0xc880c880u));
#endif
        }
    } else {
        f16_of_e4m3(to, four);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 890 /* in software: NaN became a number */
        if ((((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0)
#pragma unroll
            for (unsigned i = 0; i < 2; i++)
                to[i] = pair_of<true>(e4m3_value((uint8_t)(four >> 16 * i)),
                                      e4m3_value((uint8_t)(four >> (16 * i + 8))));
#endif
    }
}

/* 16 bytes of a cache as columns 16 c … 16 c + 15 of a row. */
template <int D, enum dtype KV>
static __device__ __forceinline__ void widen_chunk(struct row_of<D> *to, unsigned row, unsigned c,
                                                   const uint8_t *from)
{
    const uint4 w = *(const uint4 *)from;
    uint32_t pairs[8];
    f16_of_four<KV>(pairs, w.x);
    f16_of_four<KV>(pairs + 2, w.y);
    f16_of_four<KV>(pairs + 4, w.z);
    f16_of_four<KV>(pairs + 6, w.w);
    *(uint4 *)chunk_at<D>(to, row, 2 * c) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    *(uint4 *)chunk_at<D>(to, row, 2 * c + 1) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}

/* s = q K^T, columns of the head ascending by 16. */
template <int D, bool F16>
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
            mma_pairs<F16>(s[2 * n], warp_q<D>::kept ? kept.a[warp_q<D>::kept ? i : 0] : a, b);
            mma_pairs<F16>(s[2 * n + 1], warp_q<D>::kept ? kept.a[warp_q<D>::kept ? i : 0] : a,
                           b + 2);
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
        for (unsigned j = 0; j < 4; j++)
            s[n][j] = (scale_k ? s[n][j] * (scale_k[(int)(8 * n) + t + (int)(j % 2)] * KV_I8_PART)
                               : s[n][j]) *
                      a.scale;
    if (a.soft_cap > 0)
#pragma unroll
        for (unsigned n = 0; n < 8; n++)
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                s[n][j] = a.soft_cap * tanhf(s[n][j] / a.soft_cap);
    if (c0 >= r.each.least && c0 + (int)TILE - 1 <= r.each.most)
        return; /* nothing to mask */
#pragma unroll
    for (unsigned n = 0; n < 8; n++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const int c = c0 + (int)(8 * n) + t + (int)(j % 2);
            if (c > r.last[j / 2] || c < r.first[j / 2])
                s[n][j] = NONE;
        }
}

/* What the sums of a lane's rows are multiplied by when m grows. */
struct row_factors {
    float row[2];
    bool grown; /* in one of them */
};

/* s becomes exp(s - m); m and l are brought to the new m, acc is left to rescale(). */
template <int D>
static __device__ __forceinline__ struct row_factors soften_scores(float s[8][4],
                                                                   struct warp_state<D> &w)
{
    struct row_factors f;
    float base[2];
    f.grown = false;
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        float most = w.m[i];
#pragma unroll
        for (unsigned n = 0; n < 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        f.row[i] = w.m[i] == most ? 1.0f : exp2_of((w.m[i] - most) * LOG2E);
        base[i] = most == NONE ? 0 : -most * LOG2E;
        f.grown |= w.m[i] != most;
        w.m[i] = most;
        w.l[i] *= f.row[i];
    }
#pragma unroll
    for (unsigned n = 0; n < 8; n++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            s[n][j] = exp2_of(fmaf(s[n][j], LOG2E, base[j / 2]));
            w.l[j / 2] += s[n][j];
        }
    return f;
}

template <int D>
static __device__ __forceinline__ void rescale(struct warp_state<D> &w, const struct row_factors &f)
{
    if (__any_sync(ALL_LANES, f.grown))
#pragma unroll
        for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                w.acc[n][j] *= f.row[j / 2];
}

/* s becomes exp(s - m); m, l and acc are brought to the new m. */
template <int D>
static __device__ __forceinline__ void soften(float s[8][4], struct warp_state<D> &w)
{
    rescale(w, soften_scores<D>(s, w));
}

/* acc += s V, s rounded to V's 16 bits. scale_v: int8 only. */
template <int D, bool F16>
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
            const float low = scale_v ? scale_v[8 * n + t] * KV_I8_PART : 1,
                        high = scale_v ? scale_v[8 * n + t + 1] * KV_I8_PART : 1;
            a[i] = pair_of<F16>(s[n][j] * low, s[n][j + 1] * high);
        }
#pragma unroll
        for (unsigned d = 0; d < D / 16; d++) {
            ldmatrix_x4_trans(b, a_matrix<D>(v + 16 * k, d));
            mma_pairs<F16>(w.acc[2 * d], a, b);
            mma_pairs<F16>(w.acc[2 * d + 1], a, b + 2);
        }
    }
}

/* ---- splits put together ---- */
template <int D> static __device__ __forceinline__ void begin_split(struct warp_state<D> &w)
{
#pragma unroll
    for (unsigned n = 0; n < D / 8; n++)
        w.acc[n][0] = w.acc[n][1] = w.acc[n][2] = w.acc[n][3] = 0;
    w.m[0] = w.m[1] = NONE;
    w.l[0] = w.l[1] = 0;
}

struct folded { /* M, L of a row, and the factors of O and of one partial result in the next O */
    float m, l, old, part;
};
/* Fold in a partial result with largest score m and sum of weights l. */
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
/* O after one element of that partial result. old 0: there is no O yet; part 0: all of its positions were
 * masked. */
static __device__ __forceinline__ float fold_value(const struct folded &f, float o, float part)
{
    return f.part == 0 ? o : f.old == 0 ? part : fmaf(part, f.part, o * f.old);
}

/* 1 / L, with the sink of head `head` in L. */
static __device__ __forceinline__ float inverse_of(const struct folded &f, const float *sinks,
                                                   uint32_t head)
{
    return 1.0f / (sinks ? f.l + exp2_of((sinks[head] - f.m) * LOG2E) : f.l);
}

/* ---- partial results (attention_fold.cu) ---- */
struct fold_args {
    void *out; /* [rows][n_head][width], row stride out_stride */
    enum dtype out_dtype;
    size_t out_stride;
    const struct attention_seq *seqs;
    const void *plan;
    const float *sinks;    /* [n_head] or NULL */
    const float *partials; /* as plan.h has them: [width] acc, m, l each */
    uint32_t n_seq, n_head, width;
};
/* Nothing is launched if the plan, where it is known, has nothing to fold. */
void fold_launch(const struct fold_args *a, const void *plan_host, const struct kern_exec *x);

/* Storage of the total of a warp's rows while a split is summed: D / 2 floats per thread beside the D / 2 of the
 * split. Registers hold both up to 80 columns; shared memory, within the limit of sm_86, up to 128; wider heads use
 * the workspace, and so do small pieces, which rarely have more than one split, so that one more block fits a
 * multiprocessor. IN_BOTH: half in registers, half in shared memory. */
enum total_place { IN_REGISTERS, IN_SHARED, IN_WORKSPACE, IN_BOTH };
template <int D, unsigned WARPS> struct total_of {
    static const enum total_place place = D <= 80                 ? IN_REGISTERS
                                          : D <= 128 && WARPS > 1 ? IN_SHARED
                                                                  : IN_WORKSPACE;
};
template <int D, total_place PLACE> struct warp_total { /* of a warp's rows */
    static const unsigned kept = PLACE == IN_REGISTERS ? D / 8 : PLACE == IN_BOTH ? D / 16 : 0;
    float o[kept ? kept : 1][4];
    struct folded f[2];
    float *far_o; /* this thread's first element outside registers; the stride is 32 */
};
/* The element of the total to which w.acc[n][j] is added. */
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

/* Add a split that is not the last to the total. */
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

#endif
