/* SPDX-License-Identifier: Apache-2.0 */
/* ops_fp8 - arguments of the kernels that multiply e4m3 (e4m3.h) by e4m3: weights with a scale for
 * each output, activations with one for each row. For devices; on the CPU the reference alone has
 * them, and a checkpoint in fp8 becomes floats while it is packed.
 *
 * Rows and matrices lie as those of int8 do (ops_quant.h), with e4m3 for the bytes, as they are (no
 * 128 is added), 0 past n_in and past n_out. A vector's scale is its largest magnitude / 448, and
 * what is stored x * (448 / that) to the nearest e4m3 (fp8.h has the corner cases).
 *
 * The sum over K is of floats: one f32 accumulator, k ascending, in the reference; products of two
 * e4m3 are exact there. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_FP8_H
#define QUIRE_KERNELS_OPS_FP8_H
#include "kernels/ops_quant.h"

/* q[i,c] = e4m3(x[i,c] / rows[i].scale); rows[i].sum = 0.
 * x: [n_row, n_col] f32; q: [n_row][q_stride], zeros from n_col to a multiple of KERN_QUANT_K. */
struct quant_rows_e4m3_args {
    uint8_t *q;             /* 64-byte aligned */
    struct quant_row *rows; /* [n_row] */
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, q_stride; /* elements; q_stride a multiple of KERN_QUANT_K */
};

/* As pack_quant (ops_quant.h). */
struct pack_e4m3_args {
    void *dst;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in;
    uint32_t row_start, n_out_total;
    const uint8_t *q;    /* not NULL: e4m3 that is there already, [n_out, n_in] */
    const float *scales; /* with q: [n_out] */
};

/* y[i,o] = (sum_k q[i,k] * w[o,k] * scale[o]) * rows[i].scale + bias[o] (+ y[i,o] as it was), each
 * step rounded; w.dtype F8_E4M3, x as quant_rows_e4m3 writes it, the rest as linear_quant. */
struct linear_e4m3_args {
    struct linear_quant_args by;
};

#endif
