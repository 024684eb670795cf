/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/head_weights.h"

void head_norm(const struct head_weights *w, void *y, const float *x, uint32_t n,
               const struct kern_exec *exec)
{
    const struct rms_norm_args rms = {
        .y = y,
        .y_dtype = w->compute,
        .x = x,
        .w = w->norm,
        .n_row = n,
        .n_col = w->hidden,
        .x_stride = w->hidden,
        .y_stride = w->hidden,
        .eps = w->norm_eps,
    };
    const struct layer_norm_args layer = {
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
    if (!n)
        return;
    if (w->is_layer_norm)
        w->kern->layer_norm(&layer, exec);
    else
        w->kern->rms_norm(&rms, exec);
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
