/* SPDX-License-Identifier: Apache-2.0 */
/* ops_row - arguments of the passes over a row of logits by which sampling selects tokens without
 * sorting (engine/worker/select.c).
 *
 * Sums are f64, of ROW_CHUNK neighbours each: 16 lanes, lane l adds columns l, l + 16 … of the
 * chunk; then, from +0, the columns of an incomplete last vector in ascending order, and the lanes
 * in ascending order. All variants give the same bits.
 * Threads: one thread per row; x.nth is 1. */
#ifndef QUIRE_KERNELS_OPS_OPS_ROW_H
#define QUIRE_KERNELS_OPS_OPS_ROW_H
#include "kernels/ops/ops.h"

#define ROW_CHUNK   1024u
#define ROW_EXP_MIN (-87.0f) /* below it e^x is subnormal and treated as 0 */

enum row_pass_kind {
    ROW_MAX,     /* most = the largest x, -inf when none is above; n_found = 1 when one is NaN */
    ROW_WEIGHTS, /* x = e^((x - high) / temperature), 0 where that is below low; sums of them. No x
                    is NaN or above high, which is finite. e^: ref/row_pass.c */
    ROW_KEEP,    /* x = 0 where it is below low; sums of the remaining values */
    ROW_BETWEEN, /* items: those with low < x <= high, ascending by id, until n_item are found;
                  * n_found of them. sums, unless NULL: of the x above high, over the whole row */
    ROW_RANK     /* n_found = how many are above high, or equal and before id */
};

struct row_item {
    float value;
    uint32_t id; /* its column */
};

struct row_pass_args {
    enum row_pass_kind kind;
    float *x; /* [n_col]; written by ROW_WEIGHTS and ROW_KEEP alone */
    uint32_t n_col, id, n_item;
    float low, high, temperature;
    double *sums;           /* [ceil(n_col / ROW_CHUNK)] */
    struct row_item *items; /* [n_item + 16] */
    uint32_t *n_found;
    float *most;
};

#endif
