/* SPDX-License-Identifier: Apache-2.0 */
/* row_product - the gradients of y = h Wᵀ over the rows of a chunk, for matrices behind the last
 * layer: the head, a projection. Sums over rows have the order of the rows: the same bits with any
 * number of threads. Threads: all threads of a team call together, with x of the team. */
#ifndef QUIRE_ENGINE_DISTILL_ROW_PRODUCT_H
#define QUIRE_ENGINE_DISTILL_ROW_PRODUCT_H
#include "kernels/kern.h"

#define ROW_PRODUCT_SLICE 256u /* columns of y that a thread transposes at a time */

struct row_product {
    const struct kern_table *kern;
    enum dtype compute;      /* F32 or BF16: of packed weights and of the rows that they multiply */
    uint32_t n, n_in, n_out; /* rows; columns of h and of y */
    const float *dy;         /* [n, n_out] f32 */
    const void *dy_rounded;  /* the same in the compute type; F32: dy */
    size_t dy_stride, rounded_stride;
    struct packed w_columns; /* the transpose of W: n_in outputs, n_out inputs */
    const void *packed_h;    /* [n_in, n]: h packed as weights */
    void *slices;            /* [threads][ROW_PRODUCT_SLICE, slice_stride] in the compute type */
    size_t slice_stride;
    int accumulate; /* dh is added to */
    float *dh;      /* [n, n_in] dy W */
    float *w_grad;  /* [n_out, n_in] added to: dyᵀ h */
};

/* dh. Needs a barrier before another thread's rows of it are read. */
void row_product_grad_input(const struct row_product *p, const struct kern_exec *x);
/* w_grad. */
void row_product_grad_weight(const struct row_product *p, const struct kern_exec *x);

#endif
