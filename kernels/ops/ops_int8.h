/* SPDX-License-Identifier: Apache-2.0 */
/* ops_int8 - arguments of the kernels that multiply int8 weights by int8 activations.
 *
 * Rows of activations. Each row has one scale of its own, max |x| / 127, so a row's bytes depend on
 * that row only. Rows lie q_stride bytes apart, a multiple of KERN_INT8_K; the bytes from n_col to
 * the next multiple of KERN_INT8_K are zeros, written by quant_rows and read by linear_int8.
 *
 * Weights. W: [n_out, n_in], n_k = n_in rounded up to KERN_INT8_K, in panels of KERN_PANEL = 64
 * outputs, each contiguous and read by decoding from first byte to last:
 *     int8:  panel[p]: u8 [n_k/4][64][4], then f32 scale [64]
 * u8 holds q + 128, W[o,k] is about scale[o] * q, q in -127 … 127 (int8.h has the corner cases; a
 * checkpoint's own integers may have -128); past n_in and past n_out q is 0. vpdpbusd multiplies
 * unsigned weights by signed activations without further instructions; the offset of 128 is
 * subtracted by means of the row's sum.
 *
 * The sum over K is an exact integer sum, so every variant gives the same bits for any tiling of K
 * and rows. |sum| < 2^31 holds up to KERN_INT8_IN_MAX inputs; intermediate sums may wrap. */
#ifndef QUIRE_KERNELS_OPS_OPS_INT8_H
#define QUIRE_KERNELS_OPS_OPS_INT8_H
#include "kernels/ops/ops.h"

#define KERN_INT8_K      64u     /* bytes of K per tile instruction */
#define KERN_INT8_SUM    32u     /* adjacent columns per sum of quant_rows */
#define KERN_INT8_IN_MAX 131072u /* inputs: 128 * 127 * this < 2^31 */

struct quant_row {
    float scale; /* x is about scale * q; NaN when an x is not finite */
    int32_t sum; /* of the row's q */
};

/* q[i,c] = x[i,order[c]] / rows[i].scale to the nearest integer, ties to even.
 * x: [n_row, n_col] f32; q: [n_row][q_stride], zeros from n_col to a multiple of KERN_INT8_K. */
struct quant_rows_args {
    int8_t *q;              /* 64-byte aligned */
    struct quant_row *rows; /* [n_row] */
    int16_t *sums; /* [n_row][q_stride / KERN_INT8_SUM] of adjacent columns, including the zeros
                    * at the end; NULL: not computed */
    const float *x;
    const uint32_t *order; /* [n_col] each number below it once; NULL: 0, 1, 2 … */
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_INT8_K */
};

/* As pack (ops.h), into int8 panels of packed_int8_bytes(n_out_total, n_in). */
struct pack_int8_args {
    void *dst;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in; /* n_in at most KERN_INT8_IN_MAX */
    uint32_t row_start, n_out_total;
    /* Not NULL: weights already in int8, instead of src (on the CPU: kern_int8_set). */
    const int8_t *q;     /* [n_out, n_in] */
    const float *scales; /* [n_out] */
};

/* y[i,o] = (f32(sum_k q[i,k] * w[o,k]) * scale[o]) * rows[i].scale + bias[o] (+ y[i,o] as it was,
 * when accumulate), each step rounded; gated weights and bf16: as linear (ops.h). */
struct linear_int8_args {
    void *y;                      /* as linear_args */
    enum dtype y_dtype;           /* F32 or BF16; gated on a device: or F16 */
    const int8_t *x;              /* [n_row], row stride x_stride, as quant_rows writes it */
    const struct quant_row *rows; /* [n_row] */
    struct packed w;              /* dtype I8 */
    const float *bias;            /* [n_out] or NULL */
    uint32_t n_row;
    size_t x_stride, y_stride; /* elements */
    int accumulate;
};

#endif
