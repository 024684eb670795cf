/* SPDX-License-Identifier: Apache-2.0 */
/* linear of f32 x and 16-bit W: the router of a mixture of experts with 8-bit matrices, and other matrices that
 * stay floats in such models.
 *
 * Shape: a warp has 4 outputs of 1 row, or (5 rows and more) of 8; a block 8 warps, 32 outputs. Lane l
 *   multiplies k = 8 l … 8 l + 7 of each 256. No shared memory. With 1 row the weights of two iterations are
 *   loaded ahead, the first ones while the previous kernel still runs.
 * Order: a lane's k ascending, one fma each, from +0; then lanes by halves. It depends on n_in only, so a row's
 *   bits do not depend on other rows.
 * Bytes: up to 4 rows: W once a row, x once for 32 outputs. More: W once for 8 rows. All but the first
 *   reading from L2: a router of [128, 2048] bf16 and 2048 rows has 134 MB of W and 67 MB of x.
 * FLOP: 2 n_row n_out n_in, in f32 without tensor cores. Limit: bytes / bandwidth of L2.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/linear.cuh"

#define WARPS 8u
#define OUT   4u
#define EACH  8u /* elements of a lane at a time: 16 bytes of W */

template <enum form F> static __device__ __forceinline__ float low_of(uint32_t pair)
{
    return F == FORM_BF16 ? __uint_as_float(pair << 16) : f16_value((uint16_t)pair);
}
template <enum form F> static __device__ __forceinline__ float high_of(uint32_t pair)
{
    return F == FORM_BF16 ? __uint_as_float(pair & 0xffff0000u) : f16_value((uint16_t)(pair >> 16));
}

template <enum form F>
static __device__ __forceinline__ float dot_each(float sum, uint4 w, float4 a, float4 b)
{
    sum = fmaf(a.x, low_of<F>(w.x), sum);
    sum = fmaf(a.y, high_of<F>(w.x), sum);
    sum = fmaf(a.z, low_of<F>(w.y), sum);
    sum = fmaf(a.w, high_of<F>(w.y), sum);
    sum = fmaf(b.x, low_of<F>(w.z), sum);
    sum = fmaf(b.y, high_of<F>(w.z), sum);
    sum = fmaf(b.z, low_of<F>(w.w), sum);
    return fmaf(b.w, high_of<F>(w.w), sum);
}

/* The last row or output in place of a missing one, whose result is not stored. */
static __device__ __forceinline__ size_t at_most(uint32_t i, uint32_t n)
{
    return i < n ? i : n - 1;
}

/* Elements k … k + 7 of outputs o … o + 3; past n_in, of which nothing is used, those of 0 … 7. */
static __device__ __forceinline__ void load_weights(uint4 w[OUT], const struct linear_in &in,
                                                    const struct linear_out &out, uint32_t o,
                                                    uint32_t k)
{
    const uint32_t n_in = (uint32_t)(in.row_bytes / 2), at = k < n_in ? k : 0;
#pragma unroll
    for (unsigned j = 0; j < OUT; j++)
        w[j] = load_once((const uint16_t *)in.w + at_most(o + j, out.n_out) * n_in + at);
}

template <enum form F, unsigned ROWS>
static __global__ void __launch_bounds__(WARPS *WARP)
    mixed_kernel(const struct linear_in in, const struct linear_out out)
{
    const unsigned AHEAD = ROWS == 1 ? 2 : 1;
    const uint32_t lane = threadIdx.x % WARP, n_in = (uint32_t)(in.row_bytes / 2);
    const uint32_t o = (blockIdx.x * WARPS + threadIdx.x / WARP) * OUT, row = blockIdx.y * ROWS;
    uint4 next[AHEAD][OUT];
    if (ROWS == 1)
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
            load_weights(next[i], in, out, o, (i * WARP + lane) * EACH);
    await_inputs();
    float sum[ROWS][OUT] = {};
    if (o >= out.n_out)
        return; /* all of a warp */
/* two at a time: weights loaded ahead stay in their registers */
#pragma unroll(ROWS == 1 ? 2 : 1)
    for (uint32_t k = lane * EACH; k < n_in; k += WARP * EACH) {
        uint4 w[OUT];
        if (ROWS == 1) {
#pragma unroll
            for (unsigned j = 0; j < OUT; j++) {
                w[j] = next[0][j];
                next[0][j] = next[AHEAD - 1][j];
            }
            load_weights(next[AHEAD - 1], in, out, o, k + AHEAD * WARP * EACH);
        } else {
            load_weights(w, in, out, o, k);
        }
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const char *x = (const char *)in.x + at_most(row + r, out.n_row) * in.x_bytes;
            const float4 a = load4_as(x, DT_F32, k), b = load4_as(x, DT_F32, k + 4);
#pragma unroll
            for (unsigned j = 0; j < OUT; j++)
                sum[r][j] = dot_each<F>(sum[r][j], w[j], a, b);
        }
    }
#pragma unroll
    for (unsigned i = 0; i < ROWS * OUT; i++) {
        const float all = warp_sum(sum[i / OUT][i % OUT]);
        if (lane == i % WARP)
            epilogue(out, row + i / OUT, o + i % OUT, all);
    }
}

template <enum form F>
static void mixed(const struct linear_in *in, const struct linear_out *out,
                  const struct kern_exec *x)
{
    const uint32_t n = div_up(out->n_out, WARPS * OUT);
    if (out->n_row <= 4)
        launch(mixed_kernel<F, 1>, dim3(n, out->n_row), WARPS * WARP, 0, x, *in, *out);
    else
        launch(mixed_kernel<F, 8>, dim3(n, div_up(out->n_row, 8)), WARPS * WARP, 0, x, *in, *out);
}

void linear_mixed_bf16(const struct linear_in *in, const struct linear_out *out,
                       const struct kern_exec *x)
{
    mixed<FORM_BF16>(in, out, x);
}
void linear_mixed_f16(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x)
{
    mixed<FORM_F16>(in, out, x);
}
