/* SPDX-License-Identifier: Apache-2.0 */
/* ops_fp8 - arguments of the kernels that multiply e4m3 (e4m3.h) by e4m3: weights with a scale per
 * output, activations with a scale per row. For devices; on the CPU only the reference implements
 * them, and an fp8 checkpoint is converted to floats while it is packed.
 *
 * Rows and matrices have the layout of int8 (ops_int8.h) with e4m3 bytes (without an offset of
 * 128), 0 past n_in and past n_out. A vector's scale is its largest magnitude / 448; the stored
 * value is x * (448 / largest magnitude), rounded to the nearest e4m3 (fp8.h has the corner cases).
 * A matrix may have a scale for its input instead (packed.x_scale, found by calibration): of all
 * rows, and x is cut to 448 times it.
 *
 * The sum over K is in f32: in the reference one accumulator, k ascending; products of two e4m3 are
 * exact.
 *
 * Block scales (packed.blocks): weights of checkpoints with a scale per 128 x 128 block are
 * multiplied without conversion, by activations with a scale per row and 128 columns. Block b of K
 * is k = 128 b … 128 b + 127; the last one may be shorter:
 *
 *     y[i,o] = sum_b (sum_{k in b} q[i,k] * w[o,k]) * (x_scale[i,b] * w_scale[o / 16, b])
 *
 * Each block has its own sum from +0; blocks are added in ascending order from +0, with one fused
 * multiply-add each, so the order does not depend on n_row. Groups of KERN_GATE_INTERLEAVE outputs
 * share scales, so that the parts of fused matrices and interleaved gate and up keep their own
 * scales; coarser blocks are repeated, at 4 bytes per 2048 weights. The layout is that of e4m3
 * matrices except for the scales:
 *     in panels:  u8 [n_k/4][64][4], then f32 scale [64 / KERN_GATE_INTERLEAVE][n_block]
 * On the CPU such a checkpoint is converted to floats, scale * e4m3 in f32, rounded to --dtype
 * (weight_fp8.h), and activations are not quantized. So the device keeps the weights exact and the
 * CPU the activations: bits differ between CPU and device, but not between batches.
 * Source: arXiv:2412.19437, section 3.3. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_FP8_H
#define QUIRE_KERNELS_OPS_OPS_FP8_H
#include "kernels/ops/ops_int8.h"

#define KERN_FP8_BLOCK 128u /* inputs that share a scale */
#define KERN_FP8_FOUR  4u   /* the stride of activation scales is a multiple of this */

/* q[i,c] = e4m3(x[i,c] / rows[i].scale); rows[i].sum = 0. With a scale that is given: q[i,c] =
 * e4m3(min(max(x[i,c] * (1 / scale), -448), 448)), rows[i].scale = scale; of a row that is not
 * finite NaN.
 * x: [n_row, n_col] f32; q: [n_row][q_stride], zeros from n_col to a multiple of KERN_INT8_K. */
struct quant_rows_fp8_args {
    uint8_t *q;             /* 64-byte aligned */
    struct quant_row *rows; /* [n_row] */
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_INT8_K */
    float scale;               /* above 0: given, its inverse finite; 0: each row has its own */
};

/* As pack_int8 (ops_int8.h). */
struct pack_fp8_args {
    void *dst;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in;
    uint32_t row_start, n_out_total;
    const uint8_t *q;    /* not NULL: weights already in e4m3, [n_out, n_in] */
    const float *scales; /* with q: [n_out] */
};

/* y[i,o] = (sum_k q[i,k] * w[o,k] * scale[o]) * rows[i].scale + bias[o] (+ y[i,o] as it was), each
 * step rounded; w.dtype F8_E4M3, x as quant_rows_fp8 writes it, the rest as linear_int8. */
struct linear_fp8_args {
    struct linear_int8_args by;
};

/* As quant_rows_fp8, with a scale for each block: scales[i * scale_stride + b], b = 0 … ceil(n_col
 * / 128) - 1; the floats up to the next row are not written. */
struct quant_rows_fp8_block_args {
    uint8_t *q;    /* 64-byte aligned */
    float *scales; /* 16-byte aligned */
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_INT8_K */
    size_t scale_stride;       /* floats, a multiple of KERN_FP8_FOUR */
};

/* e4m3 with block scales into outputs row_start … row_start + n_out - 1 of dst, which has
 * n_out_total. A group of 16 outputs takes the scales of its first output; other scales within it
 * are ignored. */
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
