/* SPDX-License-Identifier: Apache-2.0 */
/* ops_int4 - arguments of the kernels that multiply 4-bit weights in groups by int8 activations.
 *
 * Weights. W: [n_out, n_in] in panels of KERN_PANEL = 64 outputs. `group` neighbours along K (128,
 * 64 or 32; n_in is a multiple of it) share a scale and a zero point for each output:
 *     W[o,k] is about scale[o,g] * (q[o,k] - zero[o,g]),  q 0 … 15, zero 0 … 16, g = k / group
 * A panel is contiguous, and decoding reads it from first byte to last, group after group:
 *     u8 [group/8][64][4]   byte b of line j of output o: the low half is q[o, 8j + b] of the
 *                           group, the high half q[o, 8j + 4 + b]
 *     f16 scale [64], u8 zero [64]
 * Outputs past n_out are zeros with scale 0.
 *
 * The sum. Within a group it is an exact integer sum. Groups are added in f32, g ascending, with
 * one fused multiply-add each:
 *     d[g] = sum_{k in g} x[k] * q[o,k] - zero[o,g] * sum_{k in g} x[k]   |d| < 2^24: exact in f32
 *     acc  = fma(scale[o,g], d[g], acc), acc = 0 before the first
 *     y    = acc * rows[i].scale + bias[o] (+ y as it was, when accumulate), each step rounded;
 *            gated weights and bf16: as linear (ops.h)
 * so the order depends on n_in and group only, and every variant gives the same bits. Threads: as
 * ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_INT4_H
#define QUIRE_KERNELS_OPS_OPS_INT4_H
#include "kernels/ops/ops_int8.h"

#define KERN_INT4_GROUP_MIN 32u

/* Min-max range per group, narrowed to the one of KERN_INT4_TRIES widths with the least squared
 * error: ref/pack_int4.c. Rows and threads: as pack (ops.h). */
#define KERN_INT4_TRIES 8
struct pack_int4_args {
    void *dst;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in, group;
    uint32_t row_start, n_out_total;
    /* Not NULL: weights already in 4 bits, instead of src (on the CPU: kern_int4_set). q: [n_out,
     * n_in] 0 … 15; scales and zeros: [n_out][n_in / group]. */
    const uint8_t *q;
    const uint16_t *scales; /* f16 */
    const uint8_t *zeros;
};

struct linear_w4a8_args {
    struct linear_int8_args by; /* as for linear_int8, with the sum above; w.group above 0 */
    const int16_t *sums;        /* [n_row][x_stride / KERN_INT8_SUM], of quant_rows */
};

/* Weights only: x stays BF16 or F16 (x_dtype), and
 *     y[i,o] = sum_g scale[o,g] * (sum_{k in g} x[i,k] * (q[o,k] - zero[o,g])) + bias[o] (+ y as
 *     it was)
 * groups ascending, one fma each, f32 throughout: ref/linear_w4a16.c. Gated weights, y and
 * strides as linear (ops.h); w.group above 0. On a device rows of x begin at multiples of 16
 * bytes. */
struct linear_w4a16_args {
    struct linear_args by;
};

#endif
