/* SPDX-License-Identifier: Apache-2.0 */
/* ops_moe - arguments of the kernels for mixtures of experts: which experts a row of activations
 * takes, and the sum of what they make of it.
 *
 *     scores = W_router x                            linear
 *     experts, weights = route(scores)               the n_used best, by ascending number
 *     y_e = down_e(silu(gate_e x) * up_e x)          linear, for the rows that took expert e
 *     x += sum_e weight_e * y_e                      combine, by ascending number
 *
 * What a row takes and the order in which it is added up depend on the row alone.
 * Source: arXiv:2101.03961, and the model cards of Mixtral and Qwen3.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_MOE_H
#define QUIRE_KERNELS_OPS_MOE_H
#include "kernels/ops.h"

/* The n_used experts with the largest x[i,:], of equal ones those with the lower number; they are
 * written by ascending number.
 *     e[j] = exp(x[i,j] - max_j x[i,j]);  p[j] = e[j] / sum_j e[j], j ascending
 *     weights = p of those taken, or (renormalize) p / their sum, numbers ascending
 * each step rounded to f32. NaN counts as -inf; a row of nothing but these takes the first experts.
 * p = 0 where the sum is not above 0, and is not renormalized then. */
struct route_args {
    const float *x; /* [n_row, n_expert] */
    size_t x_stride;
    uint32_t n_row, n_expert, n_used; /* 1 <= n_used <= n_expert */
    int renormalize;
    uint32_t *experts; /* [n_row, n_used] */
    float *weights;    /* [n_row, n_used] */
};

/* y[i,c] = fma(weights[i,j], x[places[i,j],c], y[i,c]) for j = 0 … n_used - 1 ascending. */
struct combine_args {
    float *y; /* [n_row, n_col] */
    size_t y_stride;
    const float *x; /* [places, n_col] */
    size_t x_stride;
    const uint32_t *places; /* [n_row, n_used] */
    const float *weights;   /* [n_row, n_used] */
    uint32_t n_row, n_col, n_used;
};

#endif
