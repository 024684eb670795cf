/* SPDX-License-Identifier: Apache-2.0 */
/* linear - shared code of the matrix products: fragments from rows of 64 bytes, and the epilogue. Private to
 * kernels/cuda.
 *
 * y[i,o] = sum_k x[i,k] W[o,k]: W is the A of an mma (16 outputs), x the B (8 rows of the batch), both
 * K-contiguous. K is taken 64 bytes at a time (32 of bf16 and f16, 64 of 8 bits). Which k of these an mma
 * multiplies is free as long as A and B agree, so lane (g, t) reads 16 bytes at 16 t of row g, and its
 * four words are, two by two, the words of two mma: no ldmatrix, no swizzle, whole 16-byte accesses
 * from device and from shared memory. e4m3 is as int8, with float sums; a card without that mma (all
 * but sm_89) makes it of two of f16, exactly unpacked.
 *
 * Order: segments of 512 k (16 such blocks, of bytes 8), each summed from 0, blocks ascending, two mma a block;
 * segments are added ascending, from 0. It depends on n_in only: the kernel for few rows and the one for many,
 * which cut the work differently, give a row the same bits. Sums of int8 are exact. */
#ifndef QUIRE_KERNELS_CUDA_LINEAR_CUH
#define QUIRE_KERNELS_CUDA_LINEAR_CUH
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layout.h"
extern "C" {
#include "kernels/ops/ops_moe.h"
}

#define K_BYTES  64u /* of a row at a time */
#define WARP_OUT 32u /* outputs of a warp's tile: two mma; gated: 16 of gate, 16 of up */

/* segment: blocks of K_BYTES; so each of few_kernel's 8 warps has one from K = 4096 on. FORM_BLOCKS: e4m3 with scales
 * of blocks of 128, of linear_sm90a.cu alone. */
enum form { FORM_BF16, FORM_F16, FORM_I8, FORM_E4M3, FORM_BLOCKS };
template <enum form F> struct form_of {
    typedef float acc;
    static const unsigned segment = 16;
};
template <> struct form_of<FORM_I8> {
    typedef int acc;
    static const unsigned segment = 8;
};
template <> struct form_of<FORM_E4M3> {
    typedef float acc;
    static const unsigned segment = 8;
};

/* acc += the products of the 64 bytes of which these are the lane's: rows g and g + 8 of W, row g of x. */
template <enum form F>
static __device__ __forceinline__ void multiply(typename form_of<F>::acc acc[4], uint4 low,
                                                uint4 high, uint4 x)
{
    const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
    const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        if constexpr (F == FORM_BF16)
            mma_bf16(acc, a[i], b[i]);
        else if constexpr (F == FORM_F16)
            mma_f16(acc, a[i], b[i]);
        else if constexpr (F == FORM_E4M3)
            mma_e4m3(acc, a[i], b[i]);
        else
            mma_s8(acc, a[i], b[i]);
    }
}

/* ---- epilogue; formulas: ops.h, ops_int8.h ---- */
struct linear_out {
    void *y;
    size_t y_stride;
    enum dtype y_dtype;
    const float *bias;
    const float *scales;          /* [n_out] int8 and e4m3 */
    const struct quant_row *rows; /* [n_row] int8, e4m3 and int4 */
    uint32_t n_row, n_out, gated;
    int accumulate;
    const uint32_t *picked; /* groups: index into `rows` of each row of y; NULL: the same number */
};

/* Compile-time options, because a branch would cost few_kernel the registers of a block. SCALED: scales for float
 * sums too (of e4m3). PICKED: rows may be indexed. */
template <bool SCALED, bool PICKED = false>
static __device__ __forceinline__ float scaled(const struct linear_out &f, float sum, uint32_t row,
                                               uint32_t o)
{
    const uint32_t of_x = PICKED && SCALED && f.picked ? f.picked[row] : row;
    return SCALED ? sum * f.scales[o] * f.rows[of_x].scale : sum;
}
template <bool SCALED, bool PICKED = false>
static __device__ __forceinline__ float scaled(const struct linear_out &f, int sum, uint32_t row,
                                               uint32_t o)
{
    const uint32_t of_x = PICKED && f.picked ? f.picked[row] : row;
    return (float)sum * f.scales[o] * f.rows[of_x].scale;
}

/* Output o of row `row`. */
static __device__ __forceinline__ void epilogue(const struct linear_out &f, uint32_t row,
                                                uint32_t o, float sum)
{
    if (row >= f.n_row || o >= f.n_out)
        return;
    const size_t at = row * f.y_stride + o;
    if (f.bias)
        sum += f.bias[o];
    if (f.accumulate)
        sum = sum + ((const float *)f.y)[at];
    store_as(f.y, f.y_dtype, at, sum);
}
static __device__ __forceinline__ float silu_times(float gate, float up)
{
    return gate / (1.0f + expf(-gate)) * up;
}
/* Outputs o (of gate) and o + 16 (of up). */
static __device__ __forceinline__ void epilogue_gated(const struct linear_out &f, uint32_t row,
                                                      uint32_t o, float gate, float up)
{
    if (row >= f.n_row || o >= f.n_out)
        return;
    if (f.bias) {
        gate += f.bias[o];
        up += f.bias[o + KERN_GATE_INTERLEAVE];
    }
    store_as(f.y, f.y_dtype,
             row * f.y_stride + o / (2 * KERN_GATE_INTERLEAVE) * KERN_GATE_INTERLEAVE +
                 o % KERN_GATE_INTERLEAVE,
             silu_times(gate, up));
}

/* A warp's tile of 32 outputs from `o` and 8 rows from `row`: sums[2 mma][4]. */
template <bool SCALED = false, bool PICKED = false, class T>
static __device__ __forceinline__ void epilogue_tile(const struct linear_out &f, uint32_t o,
                                                     uint32_t row, const T first[4],
                                                     const T second[4])
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t out = o + g + i / 2 * 8, r = row + t + i % 2;
        if (r >= f.n_row || out >= f.n_out)
            continue;
        if (f.gated) {
            epilogue_gated(f, r, out, scaled<SCALED, PICKED>(f, first[i], r, out),
                           scaled<SCALED, PICKED>(f, second[i], r, out + 16));
            continue;
        }
        epilogue(f, r, out, scaled<SCALED, PICKED>(f, first[i], r, out));
        if (out + 16 < f.n_out)
            epilogue(f, r, out + 16, scaled<SCALED, PICKED>(f, second[i], r, out + 16));
    }
}

/* ---- arguments from the launchers of linear and linear_int8 ---- */
struct linear_in {
    const void *x, *w;         /* rows of x_bytes and of row_bytes, aligned to 16 */
    size_t x_bytes, row_bytes; /* between rows; row_bytes is also what a row of both has */
};
void linear_tiles_bf16(const struct linear_in *in, const struct linear_out *out,
                       const struct kern_exec *x);
void linear_tiles_f16(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x);
void linear_tiles_i8(const struct linear_in *in, const struct linear_out *out,
                     const struct kern_exec *x);
void linear_tiles_fp8(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x);

/* ---- many rows on sm_90a (linear_sm90a.cu) ----
 * groups: NULL, or as below. scales: of FORM_BLOCKS, else NULL. False: nothing was launched and the caller uses the
 * tiles above, because the card, the driver or the arguments are unsupported; speed is not considered. patience:
 * of each wait (hopper.cuh). */
struct block_scales { /* each of 128 columns, of a row of x or 16 rows of W (linear_fp8_block.cu) */
    const float *x, *w;
    size_t x_stride; /* floats */
    uint32_t w_stride;
};
bool linear_wgmma(enum form f, const struct linear_in *in, const struct linear_out *out,
                  const struct groups *g, const struct block_scales *scales,
                  const struct kern_exec *x, unsigned patience);
enum by { BY_MMA, BY_WGMMA, BY_WGMMA_ALONE }; /* alone: any number of rows, no fallback */
/* The launchers of an operation: on every card; on 9.0 once wgmma has held its trial; in the trial. The rest are
 * statements of a, x and by. */
#define THREE_WAYS(op, args, ...)                                                     \
    extern "C" void op##_cuda(const struct args *a, const struct kern_exec *x)        \
    {                                                                                 \
        const enum by by = BY_MMA;                                                    \
        __VA_ARGS__;                                                                  \
    }                                                                                 \
    extern "C" void op##_sm90a(const struct args *a, const struct kern_exec *x)       \
    {                                                                                 \
        const enum by by = BY_WGMMA;                                                  \
        __VA_ARGS__;                                                                  \
    }                                                                                 \
    extern "C" void op##_wgmma_trial(const struct args *a, const struct kern_exec *x) \
    {                                                                                 \
        const enum by by = BY_WGMMA_ALONE;                                            \
        __VA_ARGS__;                                                                  \
    }
/* A wait that never ends does not hang the trial: a tile has tens of them, of 20 ms then. */
#define TRIAL_PATIENCE (1u << 10)

/* ---- f32 x, W of 16 bits, not gated (linear_mixed.cu) ---- */
void linear_mixed_bf16(const struct linear_in *in, const struct linear_out *out,
                       const struct kern_exec *x);
void linear_mixed_f16(const struct linear_in *in, const struct linear_out *out,
                      const struct kern_exec *x);

/* ---- cuBLASLt (linear_lt.cu) ---- */
/* Returns the number of rows launched, from the first; 0 if our own kernels serve. */
uint32_t linear_lt(enum form f, const struct linear_in *in, const struct linear_out *out,
                   const struct kern_exec *x);
/* Leave out the first n rows. */
void linear_skip(struct linear_in *in, struct linear_out *out, uint32_t n);

/* ---- the same of several matrices, each for rows of its own (ops_moe.h) ----
 * w and scales are those of group 0, n_row and rows of y are places. The grid is large enough for every
 * distribution of the places over the groups; the actual one is read on the device. */
void linear_grouped_bf16(const struct linear_in *in, const struct linear_out *out,
                         const struct groups *g, const struct kern_exec *x);
void linear_grouped_f16(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x);
void linear_grouped_i8(const struct linear_in *in, const struct linear_out *out,
                       const struct groups *g, const struct kern_exec *x);
void linear_grouped_fp8(const struct linear_in *in, const struct linear_out *out,
                        const struct groups *g, const struct kern_exec *x);

#endif
