/* SPDX-License-Identifier: Apache-2.0 */
/* ops_fp8 - arguments of the kernels that multiply e4m3 (e4m3.h) by e4m3: weights with a scale for
 * each output, activations with one for each row. For devices; on the CPU the reference alone has
 * them, and a checkpoint in fp8 becomes floats while it is packed.
 *
 * Rows and matrices lie as those of int8 do (ops_int8.h), with e4m3 for the bytes, as they are (no
 * 128 is added), 0 past n_in and past n_out. A vector's scale is its largest magnitude / 448, and
 * what is stored x * (448 / that) to the nearest e4m3 (fp8.h has the corner cases).
 *
 * The sum over K is of floats: one f32 accumulator, k ascending, in the reference; products of two
 * e4m3 are exact there.
 *
 * Scales of blocks (packed.blocks): weights of checkpoints that have a scale for 128 x 128 of
 * them are multiplied as they are, by activations with a scale for each row and 128 columns. Block
 * b of K is k = 128 b … 128 b + 127, the last one may be shorter:
 *
 *     y[i,o] = sum_b (sum_{k in b} q[i,k] * w[o,k]) * (x_scale[i,b] * w_scale[o / 16, b])
 *
 * Each block's sum is its own, from +0; blocks are added ascending, a fused multiply-add each, from
 * +0: one order, whatever n_row is. Outputs share scales in groups of KERN_GATE_INTERLEAVE, so that
 * parts of fused matrices and gate and up interleaved keep those of their own; coarser blocks are
 * repeated, at 4 bytes for 2048 weights. Stored, matrices lie as those of e4m3 do, but for the
 * scales:
 *     in panels:  u8 [n_k/4][64][4], then f32 scale [64 / KERN_GATE_INTERLEAVE][n_block]
 * On the CPU such a checkpoint becomes floats, scale * e4m3 in f32, rounded to --dtype
 * (weight_fp8.h); activations are not quantized there. Exact are here the weights, there the
 * activations: bits differ between CPU and device, never between batches.
 * Source: arXiv:2412.19437, section 3.3. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_FP8_H
#define QUIRE_KERNELS_OPS_OPS_FP8_H
#include "kernels/ops/ops_int8.h"

#define KERN_FP8_BLOCK 128u /* inputs that share a scale */
#define KERN_FP8_FOUR  4u   /* rows of activations' scales are multiples of so many apart */

/* q[i,c] = e4m3(x[i,c] / rows[i].scale); rows[i].sum = 0.
 * x: [n_row, n_col] f32; q: [n_row][q_stride], zeros from n_col to a multiple of KERN_INT8_K. */
struct quant_rows_fp8_args {
    uint8_t *q;             /* 64-byte aligned */
    struct quant_row *rows; /* [n_row] */
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_INT8_K */
};

/* As pack_int8 (ops_int8.h). */
struct pack_fp8_args {
    void *dst;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in;
    uint32_t row_start, n_out_total;
    const uint8_t *q;    /* not NULL: e4m3 that is there already, [n_out, n_in] */
    const float *scales; /* with q: [n_out] */
};

/* y[i,o] = (sum_k q[i,k] * w[o,k] * scale[o]) * rows[i].scale + bias[o] (+ y[i,o] as it was), each
 * step rounded; w.dtype F8_E4M3, x as quant_rows_fp8 writes it, the rest as linear_int8. */
struct linear_fp8_args {
    struct linear_int8_args by;
};

/* As quant_rows_fp8, with a scale for each block: scales[i * scale_stride + b], b = 0 …
 * ceil(n_col / 128) - 1; what is between these and the next row is not written. */
struct quant_rows_fp8_block_args {
    uint8_t *q;    /* 64-byte aligned */
    float *scales; /* 16-byte aligned */
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_INT8_K */
    size_t scale_stride;       /* floats, a multiple of KERN_FP8_FOUR */
};

/* e4m3 with scales of blocks into outputs row_start … row_start + n_out - 1 of dst, n_out_total of
 * them in all. A group of 16 has the scales of its first output: whoever gives others loses
 * them. */
struct pack_fp8_block_args {
    void *dst;
    const uint8_t *q;    /* [n_out, n_in] */
    const float *scales; /* [n_out][ceil(n_in / 128)] */
    uint32_t n_out, n_in;
    uint32_t row_start, n_out_total;
};

/* The formula above, + bias[o] (+ y[i,o] as it was), gated weights and 16-bit y as linear_int8;
 * w.dtype F8_E4M3, w.blocks 1, x as quant_rows_fp8_block writes it. */
struct linear_fp8_block_args {
    void *y;
    enum dtype y_dtype;
    const uint8_t *x;
    const float *x_scales;
    struct packed w;
    const float *bias; /* [n_out] or NULL */
    uint32_t n_row;
    size_t x_stride, y_stride, scale_stride; /* elements */
    int accumulate;
};

#endif
