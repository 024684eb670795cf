/* SPDX-License-Identifier: Apache-2.0 */
/* dyᵀ exists ROW_PRODUCT_SLICE columns at a time in each thread, so that it stays in a cache. */
#include "engine/distill/row_product.h"
#include "engine/distill/row_share.h"

static size_t width_of(const struct row_product *p)
{
    return dtype_bits(p->compute) / 8;
}

/* All threads share the panels of Wᵀ where each has one; else the rows. */
void row_product_grad_input(const struct row_product *p, const struct kern_exec *x)
{
    const bool by_panels = (p->n_in + KERN_PANEL - 1) / KERN_PANEL >= x->nth;
    const struct row_share s = by_panels ? (struct row_share){0, p->n} : row_share_of(p->n, x);
    const struct kern_exec mine = by_panels ? *x : row_exec_alone(*x);
    const struct linear_args a = {
        .y = p->dh + (size_t)s.begin * p->n_in,
        .y_dtype = DT_F32,
        .x = (const char *)p->dy_rounded + s.begin * p->rounded_stride * width_of(p),
        .x_dtype = p->compute,
        .w = p->w_columns,
        .n_row = s.end - s.begin,
        .x_stride = p->rounded_stride,
        .y_stride = p->n_in,
        .accumulate = p->accumulate,
    };
    if (a.n_row)
        p->kern->linear(&a, &mine);
}

static void grad_of_slice(const struct row_product *p, struct row_share v,
                          const struct kern_exec *x, void *slice)
{
    const struct transpose_args t = {
        .y = slice,
        .x = p->dy + v.begin,
        .y_dtype = p->compute,
        .x_dtype = DT_F32,
        .n_row = p->n,
        .n_col = v.end - v.begin,
        .x_stride = p->dy_stride,
        .y_stride = p->slice_stride,
    };
    const struct linear_args a = {
        .y = p->w_grad + (size_t)v.begin * p->n_in,
        .y_dtype = DT_F32,
        .x = slice,
        .x_dtype = p->compute,
        .w = {.data = p->packed_h, .n_out = p->n_in, .n_in = p->n, .dtype = p->compute},
        .n_row = v.end - v.begin,
        .x_stride = p->slice_stride,
        .y_stride = p->n_in,
        .accumulate = 1,
    };
    p->kern->transpose(&t, x);
    p->kern->linear(&a, x);
}

void row_product_grad_weight(const struct row_product *p, const struct kern_exec *x)
{
    const struct kern_exec mine = row_exec_alone(*x);
    const size_t slice_bytes = ROW_PRODUCT_SLICE * p->slice_stride * width_of(p);
    const uint32_t n_slice = (p->n_out + ROW_PRODUCT_SLICE - 1) / ROW_PRODUCT_SLICE;
    const struct row_share s = row_share_of(n_slice, x);
    for (uint32_t i = s.begin; i < s.end; i++) {
        const uint32_t begin = i * ROW_PRODUCT_SLICE, left = p->n_out - begin;
        const uint32_t n = left < ROW_PRODUCT_SLICE ? left : ROW_PRODUCT_SLICE;
        grad_of_slice(p, (struct row_share){begin, begin + n}, &mine,
                      (char *)p->slices + x->ith * slice_bytes);
    }
}
