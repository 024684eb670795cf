/* SPDX-License-Identifier: Apache-2.0 */
/* mla_tile - a block of warps on tiles of 32 wide positions: scores, values, sums and their totals. R rows of q and
 * K (or V) columns a position; the steps are those of mla.cu's head. Shared by mla.cu and attention_wide.cu.
 * Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_MLA_TILE_CUH
#define QUIRE_KERNELS_CUDA_MLA_TILE_CUH
#include "kernels/cuda/attention_warp.cuh"

#define MLA_TILE 32u

template <int R> struct mla_form {
    static const unsigned warps = R == 16 ? 4 : 8;
};

/* S of the tile, scaled: this warp's 16 x 8 parts. */
template <int K, int R, bool F16>
static __device__ __forceinline__ void mla_scores(float s[R][MLA_TILE + 4],
                                                  const struct row_of<K> *q,
                                                  const struct row_of<K> *rows, float scale)
{
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = warp % 4 * 8;
    for (unsigned m = warp / 4 * 16; m < R; m += mla_form<R>::warps / 4 * 16) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (unsigned k = 0; k < K / 32; k++) { /* two of 16 columns at a time */
            uint32_t x[4], y[4], w[4];
            ldmatrix_x4(x, a_matrix<K>(q + m, 2 * k));
            ldmatrix_x4(y, a_matrix<K>(q + m, 2 * k + 1));
            ldmatrix_x4(w, chunk_at<K>(rows, n + lane % 8, 4 * k + lane / 8));
            mma_pairs<F16>(c, x, w);
            mma_pairs<F16>(c, y, w + 2);
        }
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            s[m + lane / 4 + i / 2 * 8][n + lane % 4 * 2 + i % 2] = c[i] * scale;
    }
}

/* p = exp(S - m) and the factors of the rows of this warp: w, w + WARPS, …; a lane a position. m is of the row, l of the
 * lane. seen(row of the block, score): the score, or NONE where the row does not see this lane's position. */
template <int R, bool F16, class T, class F>
static __device__ __forceinline__ void mla_soften(T &s, float *m, float *l, F seen)
{
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned i = 0; i < R / mla_form<R>::warps; i++) {
        const unsigned r = warp + i * mla_form<R>::warps;
        const float x = seen(r, s.s[r][lane]), most = fmaxf(m[i], warp_most(x));
        const float factor = m[i] == most ? 1.0f : exp2_of((m[i] - most) * LOG2E);
        const float w = x == NONE ? 0 : exp2_of((x - most) * LOG2E);
        l[i] = l[i] * factor + w;
        m[i] = most;
        chunk_at<MLA_TILE>(s.p, r, lane / 8)[lane % 8] = F16 ? f16_of(w) : bf16_of(w);
        if (lane == 0)
            s.factor[r] = factor;
    }
}

/* acc: [R / 16][columns of the warp / 8][4]; columns from `first`. */
template <int K, int V, int R, bool F16>
static __device__ __forceinline__ void mla_values(float (*acc)[V / mla_form<R>::warps / 8][4],
                                                  const struct row_of<MLA_TILE> *p,
                                                  const float *factor, const struct row_of<K> *rows)
{
    const unsigned N = V / mla_form<R>::warps / 8;
    const unsigned first = threadIdx.x / WARP * N, g = threadIdx.x % WARP / 4;
    uint32_t w[R / 16][2][4];
#pragma unroll
    for (unsigned m = 0; m < R / 16; m++) {
        const float low = factor[16 * m + g], high = factor[16 * m + g + 8];
        ldmatrix_x4(w[m][0], a_matrix<MLA_TILE>(p + 16 * m, 0));
        ldmatrix_x4(w[m][1], a_matrix<MLA_TILE>(p + 16 * m, 1));
        if (__any_sync(ALL_LANES, low != 1 || high != 1))
#pragma unroll
            for (unsigned n = 0; n < N; n++) {
                acc[m][n][0] *= low;
                acc[m][n][1] *= low;
                acc[m][n][2] *= high;
                acc[m][n][3] *= high;
            }
    }
#pragma unroll
    for (unsigned k = 0; k < 2; k++)
#pragma unroll
        for (unsigned n = 0; n < N; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, a_matrix<K>(rows + 16 * k, (first + n) / 2));
#pragma unroll
            for (unsigned m = 0; m < R / 16; m++) {
                mma_pairs<F16>(acc[m][n], w[m][k], b);
                mma_pairs<F16>(acc[m][n + 1], w[m][k], b + 2);
            }
        }
}

/* The factors of all rows, from the lanes that hold m and l, which are then reset. */
template <int R>
static __device__ __forceinline__ void mla_fold(struct folded *fold, float *m, float *l)
{
#pragma unroll
    for (unsigned i = 0; i < R / mla_form<R>::warps; i++) {
        const float sum = warp_sum(l[i]);
        if (threadIdx.x % WARP == 0)
            fold_in(&fold[threadIdx.x / WARP + i * mla_form<R>::warps], m[i], sum);
        m[i] = NONE;
        l[i] = 0;
    }
    __syncthreads();
}

template <int V, int R> struct mla_acc {
    float x[R / 16][V / mla_form<R>::warps / 8][4];
};
/* Calls put(row of the block, column, i-th value of this thread, pair of acc) for this thread's pairs. */
template <int V, int R, class F>
static __device__ __forceinline__ void mla_pairs(const mla_acc<V, R> &acc, F put)
{
    const unsigned N = V / mla_form<R>::warps / 8, lane = threadIdx.x % WARP;
#pragma unroll
    for (unsigned m = 0; m < R / 16; m++)
#pragma unroll
        for (unsigned n = 0; n < N; n++)
#pragma unroll
            for (unsigned i = 0; i < 2; i++)
                put(16 * m + lane / 4 + 8 * i, (threadIdx.x / WARP * N + n) * 8 + lane % 4 * 2,
                    ((m * N + n) * 2 + i) * 2, acc.x[m][n] + 2 * i);
}

template <int V, int R> static __device__ __forceinline__ void mla_begin(mla_acc<V, R> &acc)
{
    const unsigned N = V / mla_form<R>::warps / 8;
#pragma unroll
    for (unsigned i = 0; i < R / 16 * N; i++)
        acc.x[i / N][i % N][0] = acc.x[i / N][i % N][1] = acc.x[i / N][i % N][2] =
            acc.x[i / N][i % N][3] = 0;
}

/* One element of the total behind the values of this thread. */
template <int R>
static __device__ __forceinline__ float *mla_total(float *totals, unsigned V, unsigned i)
{
    const unsigned n_thread = mla_form<R>::warps * WARP;
    return totals + (size_t)blockIdx.x * R * V + (size_t)i * n_thread + threadIdx.x;
}

#endif
