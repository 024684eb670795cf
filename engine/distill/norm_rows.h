/* SPDX-License-Identifier: Apache-2.0 */
/* norm_rows - a norm of rows and its gradient, of either kind: an RMS norm is called with the
 * arguments of a LayerNorm, of which it has neither mean nor bias. Threads: as kernels. */
#ifndef QUIRE_ENGINE_DISTILL_NORM_ROWS_H
#define QUIRE_ENGINE_DISTILL_NORM_ROWS_H
#include "kernels/kern.h"

static inline void norm_rows(const struct kern_table *k, bool is_layer_norm,
                             const struct layer_norm_args *a, const struct kern_exec *x)
{
    const struct rms_norm_args rms = {
        .y = a->y,
        .y_dtype = a->y_dtype,
        .x = a->x,
        .w = a->w,
        .n_row = a->n_row,
        .n_col = a->n_col,
        .x_stride = a->x_stride,
        .y_stride = a->y_stride,
        .eps = a->eps,
    };
    if (is_layer_norm)
        k->layer_norm(a, x);
    else
        k->rms_norm(&rms, x);
}

static inline void norm_rows_grad(const struct kern_table *k, bool is_layer_norm,
                                  const struct layer_norm_grad_args *a, const struct kern_exec *x)
{
    const struct rms_norm_grad_args rms = {
        .dx = a->dx,
        .accumulate = a->accumulate,
        .dy = a->dy,
        .x = a->x,
        .w = a->w,
        .r = a->r,
        .n_row = a->n_row,
        .n_unit = a->n_unit,
        .n_col = a->n_col,
        .dx_stride = a->dx_stride,
        .dy_stride = a->dy_stride,
        .x_stride = a->x_stride,
        .eps = a->eps,
    };
    if (is_layer_norm)
        k->layer_norm_grad(a, x);
    else
        k->rms_norm_grad(&rms, x);
}

#endif
