/* SPDX-License-Identifier: Apache-2.0 */
/* ops_elementwise - arguments of further elementwise operations, which some families use. They
 * compute no sums, so there is no order of summation. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_ELEMENTWISE_H
#define QUIRE_KERNELS_OPS_OPS_ELEMENTWISE_H
#include "kernels/ops/ops.h"

enum kern_act {
    KERN_SILU,       /* z / (1 + e^-z) */
    KERN_GELU,       /* z/2 * erfc(-z / sqrt 2) */
    KERN_GELU_TANH,  /* z / (1 + e^-2u), u = sqrt(2/pi) (z + 0.044715 z^3): z/2 * (1 + tanh u) */
    KERN_GELU_QUICK, /* z / (1 + e^(-1.702 z)) */
    KERN_RELU,
    KERN_RELU2,    /* relu(z)^2 */
    KERN_IDENTITY, /* z: rows in another type */
    KERN_ACTS,
    /* with numbers of its own, which activate alone takes, and not gated: beta z + (z > 0 ? p z^2 :
     * n (e^z - 1 - z)), p = softplus(*positive), n = beta + softplus(*negative) */
    KERN_XIELU = KERN_ACTS
};

#define KERN_XIELU_BETA 0.5f

/* y[i,c] = act(x[i,c]), or act(x[i,c]) * x[i, n_col + c] when gated; with a limit
 * act(min(x[i,c], limit)) * (min(max(x[i, n_col + c], -limit), limit) + 1), the sum rounded; NaN
 * stays. y may not overlap x.
 * Sources: arXiv:1606.08415 (gelu), arXiv:2109.08668 (relu2), arXiv:2411.13010 (xIELU), gpt-oss's
 * model card (limit). */
struct activate_args {
    enum kern_act act;
    int gated;
    float limit;                      /* gated only; 0: none */
    const float *positive, *negative; /* xIELU: a number each */
    void *y;
    enum dtype y_dtype; /* F32, BF16; F16 on a device and in ref/ */
    const float *x;     /* [n_row, n_col], gated: [n_row, 2 * n_col] */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride; /* elements */
};

/* y[i,c] += scale * x[i,c], the product rounded; or y[i,c] = scale * x[i,c] when set, and then y
 * may be x. With `by` scale is scale * *by, which a device reads in its memory. With positions
 * scale is that of a row: scale * (1 + growth ln(1 + floor((positions[i] + first) / length))). */
struct add_rows_args {
    float *y;
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, y_stride; /* elements */
    float scale;
    const float *by;           /* NULL: none */
    const uint32_t *positions; /* [n_row]; NULL: none */
    uint32_t first;
    float growth, length;
    int set;
};

enum kern_gate { KERN_GATE_SIGMOID, KERN_GATE_SILU, KERN_GATE_PRODUCT };

/* y[i,c] = x[i,c] * sigmoid(gate[i,c]), as x / (1 + e^-gate), source: arXiv:2505.06708; by silu, as
 * x gate / (1 + e^-gate); or as x gate. y may be x. */
struct gate_rows_args {
    float *y;
    const float *x, *gate;
    uint32_t n_row, n_col;
    size_t x_stride, gate_stride, y_stride; /* elements */
    enum kern_gate by;
};

/* x[i,c] = cap * tanh(x[i,c] / cap), source: arXiv:2408.00118; or min(max(x[i,c], -cap), cap) when
 * hard, and NaN stays. */
struct soft_cap_args {
    float *x;
    uint32_t n_row, n_col;
    size_t x_stride; /* elements */
    float cap;
    int hard;
};

#endif
