/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/head_weights.h"
#include "engine/distill/norm_rows.h"

void head_norm(const struct head_weights *w, void *y, const float *x, uint32_t n,
               const struct kern_exec *exec)
{
    const struct layer_norm_args a = {
        .y = y,
        .y_dtype = w->compute,
        .x = x,
        .w = w->norm,
        .b = w->norm_bias,
        .n_row = n,
        .n_col = w->hidden,
        .x_stride = w->hidden,
        .y_stride = w->hidden,
        .eps = w->norm_eps,
    };
    if (n)
        norm_rows(w->kern, w->is_layer_norm, &a, exec);
}

void head_scale(const struct head_weights *w, float *z, size_t stride, uint32_t n,
                const struct kern_exec *exec)
{
    const struct add_rows_args a = {
        .y = z,
        .x = z,
        .n_row = n,
        .n_col = w->n_vocab,
        .x_stride = stride,
        .y_stride = stride,
        .scale = w->multiplier,
        .set = 1,
    };
    if (w->multiplier != 1)
        w->kern->add_rows(&a, exec);
}

void head_cap(const struct head_weights *w, float *z, size_t stride, uint32_t n,
              const struct kern_exec *exec)
{
    const struct soft_cap_args a = {
        .x = z,
        .n_row = n,
        .n_col = w->n_vocab,
        .x_stride = stride,
        .cap = w->soft_cap,
    };
    if (w->soft_cap > 0)
        w->kern->soft_cap(&a, exec);
}
