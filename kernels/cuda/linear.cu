/* SPDX-License-Identifier: Apache-2.0 */
/* linear, linear_quant and linear_int4: which kernel serves what, and the kernels for what the tiles
 * (linear_tiles.cu) do not take: f32, rows that are not multiples of 16 bytes, 4-bit weights.
 *
 * any_kernel: a thread an output of one row, k ascending, one fma each, from +0: the order of
 *   ref/linear.c with f32 x, so for tiny models the CPU's bits. Nothing about it is fast.
 * int4_kernel: a warp an output, up to 4 rows of the batch. Lane l has blocks of 128 inputs l, l + 32, …:
 *   64 bytes of weights in four 16-byte loads, integer sums by dp4a, exact; then the groups of all lanes
 *   ascending, acc = fma(scale, d, acc), as ops_int4.h says: the CPU's bits. No shared memory. Bytes: W
 *   once for 4 rows; x from L1. Floor: n_in / 2 + 3 n_in / group bytes an output. Not measured yet. */
#include "kernels/cuda/linear.cuh"

#define THREADS   128u
#define INT4_ROWS 4u

/* ---- any ---- */
struct any_in {
    const void *x, *w;
    size_t x_stride;
    enum dtype x_dtype, w_dtype;
    uint32_t n_in;
};

static __device__ __forceinline__ float any_dot(const struct any_in &in, const struct linear_out &f,
                                                uint32_t row, uint32_t o)
{
    const size_t at_x = row * in.x_stride, at_w = (size_t)o * in.n_in;
    if (in.x_dtype == DT_I8) {
        int sum = 0;
        for (uint32_t k = 0; k < in.n_in; k++)
            sum += ((const int8_t *)in.x)[at_x + k] * ((const int8_t *)in.w)[at_w + k];
        return scaled(f, sum, row, o);
    }
    float sum = 0;
    for (uint32_t k = 0; k < in.n_in; k++)
        sum = fmaf(load_as(in.x, in.x_dtype, at_x + k), load_as(in.w, in.w_dtype, at_w + k), sum);
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    any_kernel(const struct any_in in, const struct linear_out out)
{
    const uint32_t o = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (o >= out.n_out || (out.gated && o / KERN_TURN % 2))
        return; /* gated: the thread of gate has up too */
    const float sum = any_dot(in, out, row, o);
    if (out.gated)
        finish_gated(out, row, o, sum, any_dot(in, out, row, o + KERN_TURN));
    else
        finish(out, row, o, sum);
}

static void any(const struct any_in *in, const struct linear_out *out, const struct kern_exec *x)
{
    launch(any_kernel, dim3(div_up(out->n_out, THREADS), out->n_row), THREADS, 0, x, *in, *out);
}

static bool in_sixteens(const struct linear_in *in)
{
    return ((uintptr_t)in->x | (uintptr_t)in->w | in->x_bytes | in->row_bytes) % 16 == 0;
}

extern "C" void linear_cuda(const struct linear_args *a, const struct kern_exec *x)
{
    const struct linear_out out = {a->y, a->y_stride, a->y_dtype, a->bias,    NULL,
                                   NULL, a->n_row,    a->w.n_out, a->w.gated, a->accumulate};
    const struct linear_in in = {a->x, a->w.data, a->x_stride * 2, (size_t)a->w.n_in * 2};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, a->x_dtype, a->w.dtype, a->w.n_in};
    if (a->n_row == 0)
        return;
    if (a->x_dtype != a->w.dtype || a->x_dtype == DT_F32 || !in_sixteens(&in))
        any(&slow, &out, x);
    else if (a->x_dtype == DT_BF16)
        linear_tiles_bf16(&in, &out, x);
    else
        linear_tiles_f16(&in, &out, x);
}

static struct linear_out quant_out(const struct linear_quant_args *a)
{
    const struct linear_out out = {
        a->y,
        a->y_stride,
        a->y_dtype,
        a->bias,
        (const float *)((const char *)a->w.data + int8_scales_at(a->w.n_out, a->w.n_in)),
        a->rows,
        a->n_row,
        a->w.n_out,
        a->w.gated,
        a->accumulate};
    return out;
}

extern "C" void linear_quant_cuda(const struct linear_quant_args *a, const struct kern_exec *x)
{
    const struct linear_out out = quant_out(a);
    const struct linear_in in = {a->x, a->w.data, a->x_stride, a->w.n_in};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, DT_I8, DT_I8, a->w.n_in};
    if (a->n_row == 0)
        return;
    if (in_sixteens(&in))
        linear_tiles_i8(&in, &out, x);
    else
        any(&slow, &out, x);
}

/* ---- int4 ---- */
struct int4_in {
    const int8_t *x;
    size_t x_stride;
    const int16_t *sums;
    const uint8_t *w;
    const uint16_t *scales; /* f16 [n_out][n_group] */
    const uint8_t *zeros;   /* [n_out][n_group] */
    uint32_t n_in, group;
};

/* Sums of the four quarters of a block of 128 inputs: x is 8 bytes at 32 j + 8 t for word (t, j). */
static __device__ __forceinline__ void int4_block(int sum[4], const uint32_t w[16], const int8_t *x,
                                                  uint32_t left)
{
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        sum[j] = 0;
        if (32 * j >= left) /* n_in is a multiple of 32 */
            continue;
#pragma unroll
        for (unsigned t = 0; t < 4; t++) {
            const uint2 of_x = *(const uint2 *)(x + 32 * j + 8 * t);
            sum[j] = __dp4a((int)(w[4 * t + j] & 0x0f0f0f0fu), (int)of_x.x, sum[j]);
            sum[j] = __dp4a((int)(w[4 * t + j] >> 4 & 0x0f0f0f0fu), (int)of_x.y, sum[j]);
        }
    }
}

/* acc of one row goes on over the groups of 32 lanes' blocks, of which the first is number `first`. */
static __device__ __forceinline__ float int4_groups(const struct int4_in &in, const int sum[4],
                                                    const int16_t *sums, uint32_t o, uint32_t first,
                                                    float acc)
{
    const uint32_t lane = threadIdx.x % WARP, per = INT4_BLOCK / in.group,
                   n_group = in.n_in / in.group;
    float d[4], scale[4];
#pragma unroll
    for (unsigned g = 0; g < 4; g++) { /* this lane's groups */
        const uint32_t number = (first + lane) * per + g, quarters = in.group / 32;
        int whole = 0, of_x = 0;
        d[g] = scale[g] = 0;
        if (g >= per || number >= n_group)
            continue;
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            if (j / quarters == g) {
                whole += sum[j];
                of_x += sums[(first + lane) * 4 + j];
            }
        d[g] = (float)(whole - in.zeros[(size_t)o * n_group + number] * of_x);
        scale[g] = f16_value(in.scales[(size_t)o * n_group + number]);
    }
    for (unsigned from = 0; from < WARP && (first + from) * per < n_group; from++)
#pragma unroll
        for (unsigned g = 0; g < 4; g++) {
            const float of_d = __shfl_sync(ALL_LANES, d[g], from);
            const float of_scale = __shfl_sync(ALL_LANES, scale[g], from);
            if (g < per && (first + from) * per + g < n_group)
                acc = fmaf(of_scale, of_d, acc);
        }
    return acc;
}

/* Sums of output o for rows from `row`. */
static __device__ __forceinline__ void int4_output(float acc[INT4_ROWS], const struct int4_in &in,
                                                   uint32_t o, uint32_t row, uint32_t n_row)
{
    const uint32_t lane = threadIdx.x % WARP, n_block = (in.n_in + INT4_BLOCK - 1) / INT4_BLOCK;
    const uint8_t *w_row = in.w + o * int4_row_bytes(in.n_in);
#pragma unroll
    for (unsigned r = 0; r < INT4_ROWS; r++)
        acc[r] = 0;
    for (uint32_t first = 0; first < n_block; first += WARP) {
        const uint32_t b = first + lane;
        uint32_t w[16] = {};
        if (b < n_block)
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                const uint4 v = *(const uint4 *)(w_row + (size_t)b * INT4_BLOCK_BYTES + 16 * i);
                w[4 * i] = v.x;
                w[4 * i + 1] = v.y;
                w[4 * i + 2] = v.z;
                w[4 * i + 3] = v.w;
            }
#pragma unroll
        for (unsigned r = 0; r < INT4_ROWS; r++) {
            int sum[4] = {0, 0, 0, 0};
            if (row + r >= n_row)
                break;
            if (b < n_block)
                int4_block(sum, w, in.x + (row + r) * in.x_stride + (size_t)b * INT4_BLOCK,
                           in.n_in - b * INT4_BLOCK);
            acc[r] = int4_groups(in, sum, in.sums + (row + r) * (in.x_stride / KERN_QUANT_SUM), o,
                                 first, acc[r]);
        }
    }
}

static __global__ void __launch_bounds__(THREADS)
    int4_kernel(const struct int4_in in, const struct linear_out out)
{
    const uint32_t i = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP,
                   lane = threadIdx.x % WARP;
    const uint32_t row = blockIdx.y * INT4_ROWS;
    /* gated: warp i has output c of gate and of up */
    const uint32_t o = out.gated ? i / KERN_TURN * 2 * KERN_TURN + i % KERN_TURN : i;
    float acc[INT4_ROWS], up[INT4_ROWS];
    if (o >= out.n_out)
        return;
    int4_output(acc, in, o, row, out.n_row);
    if (out.gated)
        int4_output(up, in, o + KERN_TURN, row, out.n_row);
#pragma unroll
    for (unsigned r = 0; r < INT4_ROWS; r++) {
        if (lane != 0 || row + r >= out.n_row)
            continue;
        const float scale = out.rows[row + r].scale;
        if (out.gated)
            finish_gated(out, row + r, o, acc[r] * scale, up[r] * scale);
        else
            finish(out, row + r, o, acc[r] * scale);
    }
}

extern "C" void linear_int4_cuda(const struct linear_int4_args *args, const struct kern_exec *x)
{
    const struct linear_quant_args *a = &args->by;
    const struct linear_out out = quant_out(a);
    const uint8_t *w = (const uint8_t *)a->w.data;
    const uint32_t n_out = a->w.n_out, n_in = a->w.n_in, group = a->w.group;
    const struct int4_in in = {a->x,
                               a->x_stride,
                               args->sums,
                               w,
                               (const uint16_t *)(w + int4_scales_from(n_out, n_in)),
                               w + int4_zeros_from(n_out, n_in, group),
                               n_in,
                               group};
    const uint32_t n = out.gated ? n_out / 2 : n_out;
    if (a->n_row)
        launch(int4_kernel, dim3(div_up(n, THREADS / WARP), div_up(a->n_row, INT4_ROWS)), THREADS,
               0, x, in, out);
}
