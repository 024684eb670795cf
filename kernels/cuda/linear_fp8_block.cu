/* SPDX-License-Identifier: Apache-2.0 */
/* linear_fp8_block, and with groups: e4m3 by e4m3 with scales of blocks (ops_fp8.h), by mma.sync; fragments:
 * linear.cuh. W is the A of an mma, whose 16 outputs are one group and so have one scale; a lane's sums are of
 * two rows of x, which have two.
 *
 * Order: that of ref/linear_fp8_block.c but within a block of 128, which is four mma from 0. Few and many
 * give a row the same bits.
 *
 * few: up to 16 rows. A block of 8 warps has 32 outputs. In a round the warps take two blocks of 128 inputs
 *   each, straight from device memory to registers; while the next round's 8 KiB a warp are on their way,
 *   all threads add the 16 blocks of this one, a pair of outputs (o, o + 16) each: gate has its up.
 *   Shared memory: [16 blocks][2 mma][2 groups of 8 rows][32 lanes] x 16 bytes + scales = 34 KiB.
 *   Bytes: W once; x from L2, n_row / 32 of W. Floor: bytes / bandwidth.
 * many: a block of 16 warps has 128 outputs x 128 rows, a warp 32 x 32. Four stages of [128 rows of W][64
 *   bytes] and [128 rows of x][64 bytes], cp.async: 64 KiB, which then take the sums on their way out (66 KiB);
 *   the scales of 4 blocks of 128, twice: 4.25 KiB; addresses: 9 KiB. Sums of the block and of those before it: 32 + 32
 * registers;
 *   with 64 + 64, as in linear_tiles.cu, none were left for the scales. Floor: 2 n_row n_out n_in / peak.
 * groups: the same two (groups.cuh).
 * any: rows that are not multiples of 16 bytes; the reference's bits; not optimized.
 * Fractions: not measured yet. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"
extern "C" {
#include "kernels/ops/ops_fp8.h"
}

#define WARPS           8u
#define THREADS         (WARPS * WARP)
#define FEW_ROWS        16u
#define OF_WARP         2u /* blocks of 128 inputs that a warp takes at a time */
#define ROUND           (WARPS * OF_WARP)
#define MANY_OUT        128u
#define MANY_ROWS       128u
#define MANY_WARP       32u /* rows of a warp, and outputs */
#define STAGES          4u
#define HALVES          (KERN_FP8_BLOCK / K_BYTES) /* of a block of 128 */
#define QUAD            (KERN_FP8_FOUR * HALVES) /* 64 bytes of K whose scales are loaded at a time */
#define MANY_INTERLEAVE (MANY_OUT / KERN_GATE_INTERLEAVE)
#define MANY_THREADS    (MANY_OUT / WARP_OUT * (MANY_ROWS / MANY_WARP) * WARP)
#define GROUPS_OF_8     (MANY_WARP / 8) /* rows of x of an mma */

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
    p.o = blockIdx.x * WARP_OUT;
    p.row = 0;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        const uint32_t row = threadIdx.x % WARP / 4 + 8 * n, of_scale = few_scale_at<N>(n).row;
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
    const struct linear_group t = tile_at(g, blockIdx.y, 8 * N);
    struct blocks_in in = all_in;
    struct linear_out out = all_out;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, g, t.group);
    out.n_row = t.end;
    struct few_part<N> p;
    struct few_prefetch<N> ahead;
    uint32_t x_row[N], scale_row[N];
    p.o = blockIdx.x * WARP_OUT;
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

/* ---- many rows ---- */
struct many_in {
    uint4 w[STAGES][MANY_OUT][4], x[STAGES][MANY_ROWS][4];
};
/* A thread fetches 16 bytes of each 64 of a row of W and of a row of x; the first ones also scales, of
 * a row of x or of a group. */
static_assert(MANY_THREADS == 4 * MANY_OUT && MANY_THREADS == 4 * MANY_ROWS, "a row for 4 threads");
#define MANY_SCALES (MANY_ROWS + MANY_INTERLEAVE)

struct many_shared {
    union {
        struct many_in in;
        float sums[MANY_ROWS][MANY_OUT + 4]; /* at last; + 4: other banks for the next row */
    };
    uint4 scales[2][MANY_SCALES]; /* of 4 blocks each: of rows, then of groups */
    /* In shared memory, because there are no registers for them. Source addresses of each thread: */
    const uint8_t *w_from[MANY_THREADS], *x_from[MANY_THREADS];
    const float *scales_from[MANY_SCALES];
    struct linear_out out;
};

/* Outputs past the last repeat the last one, and rows past the end are chosen by the caller; their sums are not
 * stored. x_row: this thread's row of x; scale_row: the row of its scales. */
static __device__ __forceinline__ void many_place(struct many_shared &s, const struct blocks_in &in,
                                                  uint32_t n_out, uint32_t x_row,
                                                  uint32_t scale_row)
{
    const uint32_t chunk = threadIdx.x % 4 * 16, last = (n_out - 1) / KERN_GATE_INTERLEAVE;
    const uint32_t o = blockIdx.x * MANY_OUT + threadIdx.x / 4;
    const uint32_t group = blockIdx.x * MANY_INTERLEAVE + threadIdx.x - MANY_ROWS;
    s.w_from[threadIdx.x] = in.w + (size_t)(o < n_out ? o : n_out - 1) * in.n_in + chunk;
    s.x_from[threadIdx.x] = in.x + x_row * in.x_stride + chunk;
    if (threadIdx.x < MANY_ROWS)
        s.scales_from[threadIdx.x] = in.x_scales + scale_row * in.scale_stride;
    else if (threadIdx.x < MANY_SCALES)
        s.scales_from[threadIdx.x] =
            in.w_scales + (group < last ? group : last) * (size_t)in.w_stride;
}

/* 64 bytes of K, and with the first of a quad the quad's scales. */
static __device__ __forceinline__ void many_load(struct many_shared &s, uint32_t n_in,
                                                 uint32_t block)
{
    const uint32_t chunk = threadIdx.x % 4, stage = block % STAGES, at = block * K_BYTES;
    const unsigned n = at + chunk * 16 < n_in ? 16 : 0;
    cp_async16(&s.in.w[stage][threadIdx.x / 4][chunk], s.w_from[threadIdx.x] + at, n);
    cp_async16(&s.in.x[stage][threadIdx.x / 4][chunk], s.x_from[threadIdx.x] + at, n);
    if (block % QUAD == 0 && threadIdx.x < MANY_SCALES)
        cp_async16(&s.scales[block / QUAD % 2][threadIdx.x],
                   s.scales_from[threadIdx.x] + block / HALVES, 16);
}

static __device__ __forceinline__ void many_multiply(float acc[2][GROUPS_OF_8][4],
                                                     const struct many_in &s, uint32_t stage)
{
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    uint4 w[4], x[GROUPS_OF_8];
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        w[j] = s.w[stage][warp % 4 * WARP_OUT + g + 8 * j][t];
#pragma unroll
    for (unsigned n = 0; n < GROUPS_OF_8; n++)
        x[n] = s.x[stage][warp / 4 * MANY_WARP + 8 * n + g][t];
#pragma unroll
    for (unsigned i = 0; i < 2 * 2; i++)
#pragma unroll
        for (unsigned n = 0; n < GROUPS_OF_8; n++)
            multiply_part(acc[i % 2][n], i / 2, w[i % 2 * 2], w[i % 2 * 2 + 1], x[n]);
}

/* The end of a block of 128. */
static __device__ __forceinline__ void many_promote(float total[2][GROUPS_OF_8][4],
                                                    float acc[2][GROUPS_OF_8][4],
                                                    const struct many_shared &s, uint32_t block)
{
    const uint32_t warp = threadIdx.x / WARP, t = threadIdx.x % 4 * 2;
    const uint32_t quad = block / KERN_FP8_FOUR % 2, e = block % KERN_FP8_FOUR;
    const float *of_w = (const float *)&s.scales[quad][MANY_ROWS + warp % 4 * 2] + e;
    const float *of_x = (const float *)&s.scales[quad][warp / 4 * MANY_WARP + t] + e;
#pragma unroll
    for (unsigned n = 0; n < GROUPS_OF_8; n++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const float x = of_x[(8 * n + i) * KERN_FP8_FOUR];
#pragma unroll
            for (unsigned m = 0; m < 2; m++) {
                const float scale = x * of_w[m * KERN_FP8_FOUR];
#pragma unroll
                for (unsigned j = i; j < 4; j += 2) {
                    total[m][n][j] = fmaf(acc[m][n][j], scale, total[m][n][j]);
                    acc[m][n][j] = 0;
                }
            }
        }
}

/* Sums through shared memory, so that neighbouring threads store neighbouring outputs. */
static __device__ __forceinline__ void many_store(struct many_shared &s, uint32_t first,
                                                  const float total[2][GROUPS_OF_8][4])
{
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned i = 0; i < 2 * GROUPS_OF_8 * 4; i++) { /* mma, group of 8 rows, element */
        const uint32_t row = warp / 4 * MANY_WARP + i / 4 % GROUPS_OF_8 * 8 + t + i % 2;
        s.sums[row][warp % 4 * WARP_OUT + i / (4 * GROUPS_OF_8) * 16 + g + i % 4 / 2 * 8] =
            total[i / (4 * GROUPS_OF_8)][i / 4 % GROUPS_OF_8][i % 4];
    }
    __syncthreads();
    const struct linear_out &out = s.out;
    const uint32_t c = threadIdx.x % MANY_OUT, o = blockIdx.x * MANY_OUT + c;
    for (uint32_t r = threadIdx.x / MANY_OUT; r < MANY_ROWS; r += MANY_THREADS / MANY_OUT) {
        const uint32_t row = first + r;
        if (row >= out.n_row || o >= out.n_out)
            break;
        if (!out.gated)
            epilogue(out, row, o, s.sums[r][c]);
        else if (c / KERN_GATE_INTERLEAVE % 2 == 0)
            epilogue_gated(out, row, o, s.sums[r][c], s.sums[r][c + KERN_GATE_INTERLEAVE]);
    }
}

/* Rows from `row` on; the others are those before s.out.n_row. */
static __device__ __forceinline__ void many_rows(struct many_shared &s, uint32_t n_in, uint32_t row)
{
    const uint32_t n = (n_in + K_BYTES - 1) / K_BYTES;
    float acc[2][GROUPS_OF_8][4] = {}, total[2][GROUPS_OF_8][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < n)
            many_load(s, n_in, i);
        cp_async_commit();
    }
#pragma unroll 1
    for (uint32_t b = 0; b < n; b++) {
        cp_async_wait(STAGES - 2);
        __syncthreads(); /* block b is loaded, and no warp reads the stage that is loaded next */
        if (b + STAGES - 1 < n)
            many_load(s, n_in, b + STAGES - 1);
        cp_async_commit();
        many_multiply(acc, s.in, b % STAGES);
        if (b % HALVES == HALVES - 1 || b + 1 == n)
            many_promote(total, acc, s, b / HALVES);
    }
    cp_async_wait(0);
    __syncthreads();
    many_store(s, row, total);
}

/* Seen by all threads from the first barrier of many_rows on. */
static __device__ __forceinline__ void many_keep(struct many_shared &s,
                                                 const struct linear_out &out, uint32_t n_row)
{
    if (threadIdx.x != 0)
        return;
    s.out = out;
    s.out.n_row = n_row;
}

static __global__ void __launch_bounds__(MANY_THREADS, 1)
    blocks_many_kernel(const struct blocks_in in, const struct linear_out out)
{
    await_inputs();
    SHARED_MEMORY(s, struct many_shared);
    const uint32_t first = blockIdx.y * MANY_ROWS, last = out.n_row - 1;
    const uint32_t of_x = first + threadIdx.x / 4, of_scale = first + threadIdx.x % MANY_ROWS;
    many_keep(s, out, out.n_row);
    many_place(s, in, out.n_out, of_x < last ? of_x : last, of_scale < last ? of_scale : last);
    many_rows(s, in.n_in, first);
}

static __global__ void __launch_bounds__(MANY_THREADS, 1)
    blocks_many_groups_kernel(const struct blocks_in all_in, const struct linear_out out,
                              const struct groups g)
{
    await_inputs();
    SHARED_MEMORY(s, struct many_shared);
    const struct linear_group t = tile_at(g, blockIdx.y, MANY_ROWS);
    const uint32_t of_x = t.row + threadIdx.x / 4, of_scale = t.row + threadIdx.x % MANY_ROWS;
    struct blocks_in in = all_in;
    if (t.row == t.end)
        return; /* all of a block */
    to_group(in, g, t.group);
    many_keep(s, out, t.end);
    many_place(s, in, out.n_out, row_of_x(g, of_x < t.end ? of_x : t.end - 1),
               row_of_x(g, of_scale < t.end ? of_scale : t.end - 1));
    many_rows(s, in.n_in, t.row);
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

extern "C" void linear_fp8_block_cuda(const struct linear_fp8_block_args *a,
                                      const struct kern_exec *x)
{
    const struct linear_out out = out_of(a);
    const struct blocks_in in = in_of(a);
    const struct groups none = {};
    const dim3 few(div_up(out.n_out, WARP_OUT));
    const dim3 many(div_up(out.n_out, MANY_OUT), div_up(out.n_row, MANY_ROWS));
    if (out.n_row == 0)
        return;
    if (!in_sixteens(&in))
        launch(blocks_any_kernel<false>, dim3(div_up(out.n_out, THREADS), out.n_row), THREADS, 0, x,
               in, out, none);
    else if (out.n_row <= 8)
        launch(blocks_few_kernel<1>, few, THREADS, sizeof(struct few_shared<1>), x, in, out);
    else if (out.n_row <= FEW_ROWS)
        launch(blocks_few_kernel<2>, few, THREADS, sizeof(struct few_shared<2>), x, in, out);
    else
        launch(blocks_many_kernel, many, MANY_THREADS, sizeof(struct many_shared), x, in, out);
}

extern "C" void linear_fp8_block_grouped_cuda(const struct linear_fp8_block_grouped_args *a,
                                              const struct kern_exec *x)
{
    const struct linear_out out = out_of(&a->by);
    const struct blocks_in in = in_of(&a->by);
    const struct groups *g = &a->of;
    const uint32_t n = out.n_row, few = div_up(out.n_out, WARP_OUT);
    if (n == 0)
        return;
    if (!in_sixteens(&in) || g->w_stride % 16)
        launch(blocks_any_kernel<true>, dim3(div_up(out.n_out, THREADS), n), THREADS, 0, x, in, out,
               *g);
    else if (n <= 8 * g->n_group) /* on average */
        launch(blocks_few_groups_kernel<1>, dim3(few, tiles_max(n, g->n_group, 8)), THREADS,
               sizeof(struct few_shared<1>), x, in, out, *g);
    else if (n <= FEW_ROWS * g->n_group)
        launch(blocks_few_groups_kernel<2>, dim3(few, tiles_max(n, g->n_group, FEW_ROWS)), THREADS,
               sizeof(struct few_shared<2>), x, in, out, *g);
    else
        launch(blocks_many_groups_kernel,
               dim3(div_up(out.n_out, MANY_OUT), tiles_max(n, g->n_group, MANY_ROWS)), MANY_THREADS,
               sizeof(struct many_shared), x, in, out, *g);
}
