/* SPDX-License-Identifier: Apache-2.0 */
/* ops_moe - arguments of the kernels for mixtures of experts: the choice of experts for each row of
 * activations, and the weighted sum of their outputs.
 *
 *     scores = W_router x                            linear
 *     experts, weights = moe_route(scores)               the n_used best, by ascending number
 *     y_e = down_e(silu(gate_e x) * up_e x)          linear, for the rows that took expert e
 *     x += sum_e weight_e * y_e                      moe_combine, by ascending number
 *
 * The experts of a row and the order of their sum depend on that row only.
 * Source: arXiv:2101.03961, and the model cards of Mixtral and Qwen3.
 *
 * On a device the host launches kernels before it knows how many rows each expert has, so all
 * experts of a layer share one launch. A place is a pair of a row and one of its experts;
 * moe_group_rows sorts the places by expert:
 *
 *     experts  row 0: 1 4    row 1: 0 4    row 2: 1 2
 *     places   0         1         2         3         4         5
 *              expert 0  expert 1  expert 1  expert 2  expert 4  expert 4
 *     rows     1         0         2         2         0         1
 *     starts   0 1 3 4 4 6
 *
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_MOE_H
#define QUIRE_KERNELS_OPS_OPS_MOE_H
#include "kernels/ops/ops_fp8.h"
#include "kernels/ops/ops_int4.h"

/* The n_used experts with the largest choice c[j] (the lower number first among equal ones),
 * written by ascending number.
 *     e[j] = exp(x[i,j] - max_j x[i,j]);  p[j] = e[j] / sum_j e[j], j ascending
 *     sigmoid: p[j] = 1 / (1 + exp(-x[i,j]))
 *     c[j] = p[j] + bias[j], or without a bias x[i,j]
 *     weights = p of the chosen experts, or (renormalize) p / their sum, numbers ascending;
 *               * scale, * scales[j]
 * each step rounded to f32. NaN counts as -inf; a row of -inf only takes the first experts. p = 0
 * where the sum is not above 0, and is not renormalized then.
 * n_group > 1: experts are chosen from n_group_used groups of n_expert / n_group neighbours, those
 * with the largest c of one expert or (sigmoid) sum of the two largest c; equal ones as above.
 * mixer > 0 (of softmax without a bias and without groups): the weight of each of the chosen is its
 * share among the experts that are near it and were not chosen before it,
 *     1 / sum_j exp(x[i,j] - m),  j: (m - x[i,j]) / max(|x[i,j]|, m) <= mixer,  m: its score
 * Sources: arXiv:2405.04434 (groups), arXiv:2412.19437 (sigmoid), arXiv:2409.12136 (mixer). */
#define KERN_GROUPS_MAX 64u
struct moe_route_args {
    const float *x; /* [n_row, n_expert] */
    size_t x_stride;
    uint32_t n_row, n_expert, n_used; /* 1 <= n_used <= n_expert */
    int renormalize;
    int sigmoid;
    const float *bias; /* [n_expert] or NULL */
    uint32_t n_group;  /* divides n_expert, at most KERN_GROUPS_MAX; 0 or 1: no groups */
    uint32_t n_group_used;
    float scale;         /* 0: 1 */
    float mixer;         /* 0: none */
    const float *scales; /* [n_expert] or NULL */
    uint32_t *experts;   /* [n_row, n_used] */
    float *weights;      /* [n_row, n_used] */
};

/* y[i,c] = fma(weights[i,j], x[places[i,j],c], y[i,c]) for j = 0 … n_used - 1 ascending, from what
 * y has, or (set) from +0. */
struct moe_combine_args {
    float *y; /* [n_row, n_col] */
    size_t y_stride;
    const float *x; /* [places, n_col] */
    size_t x_stride;
    const uint32_t *places; /* [n_row, n_used] */
    const float *weights;   /* [n_row, n_used]; NULL: all are 1 */
    uint32_t n_row, n_col, n_used;
    int set;
};

/* Sort the places as in the picture above; the sort is stable, so the rows of an expert ascend. */
struct moe_group_rows_args {
    const uint32_t *experts; /* [n_row, n_used], each below n_expert and once in a row */
    uint32_t n_row, n_used, n_expert;
    uint32_t *starts; /* [n_expert + 1] */
    uint32_t *rows;   /* [n_row * n_used] */
    uint32_t *places; /* [n_row, n_used] */
};

/* The experts' matrices, of one shape and format, and the places of each expert. */
struct groups {
    size_t w_stride; /* bytes from an expert's matrix to the next one's */
    uint32_t n_group;
    const uint32_t *starts; /* [n_group + 1], starts[n_group] at most by.n_row; places past it are
                               not written */
    const uint32_t *rows;   /* [by.n_row] the row of x of each place; NULL: the place's number */
};
/* linear (linear_int8, linear_fp8, linear_fp8_block), with the matrix of expert e for the places
 * starts[e] … starts[e + 1] - 1: by.w is that of expert 0; by.bias NULL, no accumulate. A place
 * has the bits that the plain operation gives its row. */
struct linear_grouped_args {
    struct linear_args by;
    struct groups of;
};
struct linear_int8_grouped_args {
    struct linear_int8_args by;
    struct groups of;
};
struct linear_fp8_grouped_args {
    struct linear_int8_grouped_args as;
};
struct linear_fp8_block_grouped_args {
    struct linear_fp8_block_args by;
    struct groups of;
};
/* linear_w4a8 and linear_w4a16 likewise; by.w.group above 0. Scales and zeros of a matrix are
 * within its w_stride. */
struct linear_w4a8_grouped_args {
    struct linear_int8_grouped_args as;
};
struct linear_w4a16_grouped_args {
    struct linear_grouped_args as;
};

/* y[p,c] += bias_e[c], e the expert of place p: `bias` is that of expert 0, the next expert's is
 * of.w_stride bytes further; of.rows is not read. Places from of.starts[n_group] on are not
 * written. */
struct moe_add_bias_args {
    float *y; /* [n_row, n_col] */
    size_t y_stride;
    const float *bias; /* [n_col] */
    uint32_t n_row, n_col;
    struct groups of;
};

/* y[p,c] = x[r,order[c]], r = of.rows ? of.rows[p] : p, and y_rows[p] = x_rows[r]: permutes inputs
 * for weights with act-order (packed.order). With groups each place uses the order of its expert:
 * `order` is that of expert 0, the next expert's is of.w_stride bytes further. of.n_group 0: all
 * n_row rows by `order`, of.starts is not read. */
struct permute_cols_args {
    void *y;
    const void *x;
    uint32_t element;               /* bytes of one: 1 or 2 */
    struct quant_row *y_rows;       /* [n_row], or NULL: there are none */
    const struct quant_row *x_rows; /* NULL likewise */
    const uint32_t *order;          /* [n_col], each number below it once */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride; /* elements */
    struct groups of;
};

/* Rows times the weights of their places, for experts whose input is weighed:
 *     y[p,c] = x[r,c] * weights[i,j], rounded to their type; p = places[i,j], r = of_places ? p : i
 * Of bytes (I8, F8_E4M3) the numbers are copied, and their scales multiplied: y_rows[p] is
 * x_rows[r] with its scale times the weight, and so are the scales of blocks (ops_fp8.h). y may be
 * x when of_places. */
struct moe_weigh_args {
    void *y;
    const void *x;
    enum dtype dtype;         /* of both; bytes: n_col rounded up to KERN_INT8_K are copied */
    struct quant_row *y_rows; /* NULL: none, and likewise */
    const struct quant_row *x_rows;
    float *y_scales; /* [place][y_scale_stride] */
    const float *x_scales;
    const uint32_t *places; /* [n_row, n_used] */
    const float *weights;   /* [n_row, n_used] */
    uint32_t n_row, n_col, n_used;
    int of_places;
    size_t x_stride, y_stride, x_scale_stride, y_scale_stride; /* elements */
};

/* y[i,c] = fma(share, x[i,c], y[i,c]), share = 1 / (1 + exp(-scores[i * score_stride])): the shared
 * expert, which every row uses, scaled by the row's score. Source: Qwen2-MoE's model card. */
struct moe_add_shared_args {
    float *y; /* [n_row, n_col] */
    size_t y_stride;
    const float *x; /* [n_row, n_col] */
    size_t x_stride;
    const float *scores;
    size_t score_stride;
    uint32_t n_row, n_col;
};

#endif
