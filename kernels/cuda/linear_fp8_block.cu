/* SPDX-License-Identifier: Apache-2.0 */
/* linear_fp8_block, and with groups: e4m3 by e4m3 with scales of blocks (ops_fp8.h), by mma.sync; fragments:
 * linear.cuh. On compute capability 9.0 more rows than 16 go to linear_sm90a.cu, where that held its trial.
 * W is the A of an mma, whose 16 outputs are one group and so have one scale; a lane's sums are of two rows of x, which
 * have two.
 *
 * Order: that of ref/linear_fp8_block.c but within a block of 128, which is four mma from 0. The number of rows does
 * not change a row's bits.
 *
 * few: 8 or 16 rows. A block of 8 warps has 32 outputs. In a round the warps take two blocks of 128 inputs
 *   each, straight from device memory to registers; while the next round's 8 KiB a warp are on their way,
 *   all threads add the 16 blocks of this one, a pair of outputs (o, o + 16) each: gate has its up.
 *   Shared memory: [16 blocks][2 mma][2 groups of 8 rows][32 lanes] x 16 bytes + scales = 34 KiB.
 *   Bytes: W once; x from L2, n_row / 32 of W. Floor: bytes / bandwidth. More rows: tiles of 16, rows fastest, so that
 *   W comes once from memory and then from L2; a kernel of its own for them is not worth its code on older cards.
 * groups: the same (groups.cuh).
 * any: rows that are not multiples of 16 bytes; the reference's bits; not optimized.
 * Fractions: not measured yet. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"
extern "C" {
#include "kernels/ops/ops_fp8.h"
}

#define WARPS    8u
#define THREADS  (WARPS * WARP)
#define FEW_ROWS 16u
#define OF_WARP  2u /* blocks of 128 inputs that a warp takes at a time */
#define ROUND    (WARPS * OF_WARP)
#define HALVES   (KERN_FP8_BLOCK / K_BYTES) /* of a block of 128 */

struct blocks_in {
    const uint8_t *x, *w;
    const float *x_scales, *w_scales;
    size_t x_stride, scale_stride; /* of x */
    uint32_t n_in, w_stride;       /* of w_scales */
};

static __device__ __forceinline__ uint32_t n_blocks_of(const struct blocks_in &in)
{
    return (in.n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
}

/* 16 bytes of W or x that are read once, zeros and no access where they are not `there`. A branch or a choice
 * behind the load would wait for it. */
static __device__ __forceinline__ uint4 piece(const uint8_t *p, bool there)
{
    uint4 v = make_uint4(0, 0, 0, 0);
#ifdef QUIRE_CUDA_HOST
    if (there)
        v = *(const uint4 *)p;
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((uint32_t)there));
#endif
    return v;
}

/* One of the two mma of 64 bytes (multiply(), linear.cuh). If e4m3 is unpacked in software, this order consumes
 * each operand before the next is unpacked. */
static __device__ __forceinline__ void multiply_part(float acc[4], unsigned i, const uint4 &low,
                                                     const uint4 &high, const uint4 &x)
{
    const uint32_t a[4] = {i ? low.z : low.x, i ? high.z : high.x, i ? low.w : low.y,
                           i ? high.w : high.y};
    const uint32_t b[2] = {i ? x.z : x.x, i ? x.w : x.y};
    mma_e4m3(acc, a, b);
}

/* The matrix of a group. */
static __device__ __forceinline__ void to_group(struct blocks_in &in, const struct groups &g,
                                                uint32_t group)
{
    const size_t at = group * g.w_stride;
    in.w += at;
    in.w_scales = (const float *)((const char *)in.w_scales + at);
}

/* ---- few rows ---- */
template <unsigned N> struct few_shared {
    float part[ROUND][2][N][WARP][4];
    float scale[ROUND][2][8 * N]; /* of x times of W */
};

/* The part of a block: outputs from o on and rows from `row` on; and the addresses of this lane: 16 bytes of each
 * 64 of W and x, and scales. */
template <unsigned N> struct few_part {
    uint32_t o, row;
    const uint8_t *w; /* output o */
    uint32_t w_at[4]; /* bytes from there */
    const uint8_t *x[N];
    const float *w_scales, *x_scales[N];
    uint32_t w_scale_at[N]; /* floats from w_scales */
};

template <unsigned N> struct few_prefetch { /* being loaded from memory */
    uint4 w[OF_WARP][HALVES][4], x[OF_WARP][HALVES][N];
    float w_scale[N], x_scale[N];
};

/* Number i of the lane's N scales is of this block, mma and row: 32 N of a warp's two blocks. */
static_assert(OF_WARP * 2 * 8 == WARP, "a scale a lane for 8 rows");
struct few_scale {
    uint32_t block, mma, row;
};
template <unsigned N> static __device__ __forceinline__ struct few_scale few_scale_at(unsigned i)
{
    const uint32_t at = threadIdx.x % WARP + i * WARP;
    return {at / (16 * N), at / (8 * N) % 2, at % (8 * N)};
}

/* x_row: of this lane's rows of x; scale_row: of its scales. */
template <unsigned N>
static __device__ __forceinline__ void few_place(struct few_part<N> &p, const struct blocks_in &in,
                                                 uint32_t n_out, const uint32_t x_row[N],
                                                 const uint32_t scale_row[N])
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        const uint32_t o = p.o + g + 8 * j;
        p.w_at[j] = ((o < n_out ? o : n_out - 1) - p.o) * in.n_in + t * 16;
    }
    p.w = in.w + p.o * (size_t)in.n_in;
    p.w_scales = in.w_scales + p.o / KERN_GATE_INTERLEAVE * (size_t)in.w_stride;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t group = p.o / KERN_GATE_INTERLEAVE + few_scale_at<N>(n).mma;
        const uint32_t last = (n_out - 1) / KERN_GATE_INTERLEAVE;
        p.x[n] = in.x + x_row[n] * in.x_stride + t * 16;
        p.w_scale_at[n] =
            ((group < last ? group : last) - p.o / KERN_GATE_INTERLEAVE) * in.w_stride;
        p.x_scales[n] = in.x_scales + scale_row[n] * in.scale_stride;
    }
}

/* Load the warp's blocks of the iteration that begins at block `first`. All loads precede the first use, so that
 * they overlap. Weights may be read before the previous kernel has ended. */
template <unsigned N>
static __device__ __forceinline__ void few_load_w(struct few_prefetch<N> &l,
                                                  const struct blocks_in &in,
                                                  const struct few_part<N> &p, uint32_t first)
{
    const uint32_t block = first + threadIdx.x / WARP * OF_WARP, n_block = n_blocks_of(in);
    const uint32_t at = block * KERN_FP8_BLOCK, t = threadIdx.x % 4 * 16;
#pragma unroll
    for (unsigned i = 0; i < OF_WARP * HALVES; i++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            l.w[i / HALVES][i % HALVES][j] =
                piece(p.w + (p.w_at[j] + at) + i * K_BYTES, at + i * K_BYTES + t < in.n_in);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t b = block + few_scale_at<N>(n).block;
        l.w_scale[n] = b < n_block ? p.w_scales[p.w_scale_at[n] + b] : 0;
    }
}
template <unsigned N>
static __device__ __forceinline__ void few_load_x(struct few_prefetch<N> &l,
                                                  const struct blocks_in &in,
                                                  const struct few_part<N> &p, uint32_t first)
{
    const uint32_t block = first + threadIdx.x / WARP * OF_WARP, n_block = n_blocks_of(in);
    const uint32_t at = block * KERN_FP8_BLOCK, t = threadIdx.x % 4 * 16;
#pragma unroll
    for (unsigned i = 0; i < OF_WARP * HALVES; i++)
#pragma unroll
        for (unsigned n = 0; n < N; n++)
            l.x[i / HALVES][i % HALVES][n] =
                piece(p.x[n] + at + i * K_BYTES, at + i * K_BYTES + t < in.n_in);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t b = block + few_scale_at<N>(n).block;
        l.x_scale[n] = b < n_block ? p.x_scales[n][b] : 0;
    }
}

/* Their sums and scales, into shared memory. */
template <unsigned N>
static __device__ __forceinline__ void few_multiply(struct few_shared<N> &s,
                                                    const struct few_prefetch<N> &l)
{
    const uint32_t lane = threadIdx.x % WARP, at = threadIdx.x / WARP * OF_WARP;
#pragma unroll
    for (unsigned b = 0; b < OF_WARP; b++) {
        float acc[2][N][4] = {};
#pragma unroll
        for (unsigned i = 0; i < HALVES * 2; i++)
#pragma unroll
            for (unsigned m = 0; m < 2; m++)
#pragma unroll
                for (unsigned n = 0; n < N; n++)
                    multiply_part(acc[m][n], i % 2, l.w[b][i / 2][2 * m], l.w[b][i / 2][2 * m + 1],
                                  l.x[b][i / 2][n]);
#pragma unroll
        for (unsigned i = 0; i < 2 * N * 4; i++)
            s.part[at + b][i / 4 / N][i / 4 % N][lane][i % 4] = acc[i / 4 / N][i / 4 % N][i % 4];
    }
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        const struct few_scale is = few_scale_at<N>(i);
        s.scale[at + is.block][is.mma][is.row] = l.x_scale[i] * l.w_scale[i];
    }
}

/* This thread's outputs o and o + 16 of a row of the tile; threads from 128 N on have none. */
struct few_pair {
    uint32_t n, lane, element, o, row;
};
static __device__ __forceinline__ struct few_pair few_pair_of(void)
{
    const uint32_t n = threadIdx.x / 128, lane = threadIdx.x % 128 / 4, e = threadIdx.x % 4;
    return {n, lane, e, lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2};
}

/* ahead: has the first round's weights. */
template <unsigned N>
static __device__ __forceinline__ void
few_rows(struct few_shared<N> &s, struct few_prefetch<N> &ahead, const struct blocks_in &in,
         const struct linear_out &out, const struct few_part<N> &p)
{
    const uint32_t n_block = n_blocks_of(in);
    const struct few_pair mine = few_pair_of();
    float total[2] = {};
    few_load_x<N>(ahead, in, p, 0);
#pragma unroll 1
    for (uint32_t first = 0; first < n_block; first += ROUND) {
        few_multiply<N>(s, ahead);
        if (first + ROUND < n_block) {
            few_load_w<N>(ahead, in, p, first + ROUND);
            few_load_x<N>(ahead, in, p, first + ROUND);
        }
        __syncthreads();
        const uint32_t n = n_block - first < ROUND ? n_block - first : ROUND;
#pragma unroll 4
        for (uint32_t b = 0; mine.n < N && b < n; b++)
#pragma unroll
            for (unsigned m = 0; m < 2; m++)
                total[m] = fmaf(s.part[b][m][mine.n][mine.lane][mine.element],
                                s.scale[b][m][mine.row], total[m]);
        __syncthreads();
    }
    const uint32_t row = p.row + mine.row, o = p.o + mine.o;
    if (mine.n >= N)
        return;
    if (out.gated) {
        epilogue_gated(out, row, o, total[0], total[1]);
        return;
    }
    epilogue(out, row, o, total[0]);
    epilogue(out, row, o + 16, total[1]);
}

template <unsigned N>
static __global__ void __launch_bounds__(THREADS, N == 1 ? 2 : 1)
    blocks_few_kernel(const struct blocks_in in, const struct linear_out out)
{
    SHARED_MEMORY(s, struct few_shared<N>);
    struct few_part<N> p;
    struct few_prefetch<N> ahead;
    uint32_t x_row[N], scale_row[N];
    p.o = blockIdx.y * WARP_OUT;
    p.row = blockIdx.x * 8 * N;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t row = p.row + threadIdx.x % WARP / 4 + 8 * n;
        const uint32_t of_scale = p.row + few_scale_at<N>(n).row;
        x_row[n] = row < out.n_row ? row : out.n_row - 1;
        scale_row[n] = of_scale < out.n_row ? of_scale : out.n_row - 1;
    }
    few_place<N>(p, in, out.n_out, x_row, scale_row);
    few_load_w<N>(ahead, in, p, 0);
    await_inputs();
    few_rows<N>(s, ahead, in, out, p);
}

template <unsigned N>
static __global__ void __launch_bounds__(THREADS, N == 1 ? 2 : 1)
    blocks_few_groups_kernel(const struct blocks_in all_in, const struct linear_out all_out,
                             const struct groups g)
{
    await_inputs();
    SHARED_MEMORY(s, struct few_shared<N>);
    const struct linear_group t = tile_at(g, blockIdx.x, 8 * N);
    struct blocks_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, g, t.group);
    out.n_row = t.end;
    struct few_part<N> p;
    struct few_prefetch<N> ahead;
    uint32_t x_row[N], scale_row[N];
    p.o = blockIdx.y * WARP_OUT;
    p.row = t.row;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t place = t.row + threadIdx.x % WARP / 4 + 8 * n;
        const uint32_t scale_place = t.row + few_scale_at<N>(n).row;
        x_row[n] = row_of_x(g, place < t.end ? place : t.end - 1);
        scale_row[n] = row_of_x(g, scale_place < t.end ? scale_place : t.end - 1);
    }
    few_place<N>(p, in, out.n_out, x_row, scale_row);
    few_load_w<N>(ahead, in, p, 0);
    few_rows<N>(s, ahead, in, out, p);
}

/* ---- any ---- */
static __device__ __forceinline__ float any_dot(const struct blocks_in &in, uint32_t row,
                                                uint32_t o)
{
    const uint8_t *x = in.x + row * in.x_stride, *w = in.w + (size_t)o * in.n_in;
    const float *of_x = in.x_scales + row * in.scale_stride;
    const float *of_w = in.w_scales + o / KERN_GATE_INTERLEAVE * in.w_stride;
    float sum = 0;
    for (uint32_t b = 0, k = 0; k < in.n_in; b++) {
        const uint32_t end = in.n_in - k < KERN_FP8_BLOCK ? in.n_in : k + KERN_FP8_BLOCK;
        float part = 0;
        for (; k < end; k++)
            part = fmaf(e4m3_value(x[k]), e4m3_value(w[k]), part);
        sum = fmaf(part, of_x[b] * of_w[b], sum);
    }
    return sum;
}

/* A thread an output of a row; the thread of gate has up too. */
template <bool GROUPS>
static __global__ void __launch_bounds__(THREADS)
    blocks_any_kernel(const struct blocks_in all_in, const struct linear_out out,
                      const struct groups g)
{
    await_inputs();
    const uint32_t o = blockIdx.x * THREADS + threadIdx.x, place = blockIdx.y;
    struct blocks_in in = all_in;
    if (o >= out.n_out || (out.gated && o / KERN_GATE_INTERLEAVE % 2) ||
        (GROUPS && place >= g.starts[g.n_group]))
        return;
    if (GROUPS)
        to_group(in, g, group_at(g, place));
    const uint32_t row = GROUPS ? row_of_x(g, place) : place;
    const float sum = any_dot(in, row, o);
    if (out.gated)
        epilogue_gated(out, place, o, sum, any_dot(in, row, o + KERN_GATE_INTERLEAVE));
    else
        epilogue(out, place, o, sum);
}

/* ---- launchers ---- */
static struct linear_out out_of(const struct linear_fp8_block_args *a)
{
    const struct linear_out out = {a->y,     a->y_stride, a->y_dtype, a->bias,       NULL, NULL,
                                   a->n_row, a->w.n_out,  a->w.gated, a->accumulate, NULL};
    return out;
}

static struct blocks_in in_of(const struct linear_fp8_block_args *a)
{
    const struct blocks_in in = {
        a->x,
        (const uint8_t *)a->w.data,
        a->x_scales,
        (const float *)((const char *)a->w.data + int8_scales_at(a->w.n_out, a->w.n_in)),
        a->x_stride,
        a->scale_stride,
        a->w.n_in,
        blocks_stride(a->w.n_in)};
    return in;
}

/* Rows of bytes and of scales of x and of W. */
static bool in_sixteens(const struct blocks_in *in)
{
    return ((uintptr_t)in->x | (uintptr_t)in->w | (uintptr_t)in->x_scales | in->x_stride |
            in->n_in | in->scale_stride * 4) %
               16 ==
           0;
}

static struct linear_in bytes_of(const struct blocks_in *in)
{
    return {in->x, in->w, in->x_stride, in->n_in};
}
static struct block_scales scales_of(const struct blocks_in *in)
{
    return {in->x_scales, in->w_scales, in->scale_stride, in->w_stride};
}

static void product(const struct linear_fp8_block_args *a, const struct kern_exec *x, enum by by)
{
    const struct linear_out out = out_of(a);
    const struct blocks_in in = in_of(a);
    const struct groups none = {};
    const struct linear_in bytes = bytes_of(&in);
    const struct block_scales scales = scales_of(&in);
    const uint32_t n = out.n_row, n_o = div_up(out.n_out, WARP_OUT);
    if (n == 0)
        return;
    if (by == BY_WGMMA_ALONE)
        linear_wgmma(FORM_BLOCKS, &bytes, &out, NULL, &scales, x, TRIAL_PATIENCE);
    else if (!in_sixteens(&in))
        launch(blocks_any_kernel<false>, dim3(div_up(out.n_out, THREADS), n), THREADS, 0, x, in,
               out, none);
    else if (n <= 8)
        launch(blocks_few_kernel<1>, dim3(1, n_o), THREADS, sizeof(struct few_shared<1>), x, in,
               out);
    else if (n <= FEW_ROWS || by != BY_WGMMA ||
             !linear_wgmma(FORM_BLOCKS, &bytes, &out, NULL, &scales, x, 0))
        launch(blocks_few_kernel<2>, dim3(div_up(n, FEW_ROWS), n_o), THREADS,
               sizeof(struct few_shared<2>), x, in, out);
}

static void product_groups(const struct linear_fp8_block_grouped_args *a, const struct kern_exec *x,
                           enum by by)
{
    const struct linear_out out = out_of(&a->by);
    const struct blocks_in in = in_of(&a->by);
    const struct groups *g = &a->of;
    const struct linear_in bytes = bytes_of(&in);
    const struct block_scales scales = scales_of(&in);
    const uint32_t n = out.n_row, n_o = div_up(out.n_out, WARP_OUT);
    if (n == 0)
        return;
    if (by == BY_WGMMA_ALONE)
        linear_wgmma(FORM_BLOCKS, &bytes, &out, g, &scales, x, TRIAL_PATIENCE);
    else if (!in_sixteens(&in) || g->w_stride % 16)
        launch(blocks_any_kernel<true>, dim3(div_up(out.n_out, THREADS), n), THREADS, 0, x, in, out,
               *g);
    else if (n <= 8 * g->n_group) /* on average */
        launch(blocks_few_groups_kernel<1>, dim3(tiles_max(n, g->n_group, 8), n_o), THREADS,
               sizeof(struct few_shared<1>), x, in, out, *g);
    else if (n <= FEW_ROWS * g->n_group || by != BY_WGMMA ||
             !linear_wgmma(FORM_BLOCKS, &bytes, &out, g, &scales, x, 0))
        launch(blocks_few_groups_kernel<2>, dim3(tiles_max(n, g->n_group, FEW_ROWS), n_o), THREADS,
               sizeof(struct few_shared<2>), x, in, out, *g);
}

THREE_WAYS(linear_fp8_block, linear_fp8_block_args, product(a, x, by))

THREE_WAYS(linear_fp8_block_grouped, linear_fp8_block_grouped_args, product_groups(a, x, by))
