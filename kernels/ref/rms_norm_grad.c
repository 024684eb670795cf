/* SPDX-License-Identifier: Apache-2.0 */
/* dx[c] = r * (g[c] - x[c] * m), g = dy * w, m = ((sum_c g x / n_col) * r) * r.   Source:
 * arXiv:1910.07467, differentiated.
 *
 * Order: the squares as in ref/rms_norm.c; in the same 16 f32 lanes the products of g (rounded) and
 * x, each by one fused multiply-add, folded by halves. g - x m is one fused multiply-add; the old
 * dx is added last. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void unit(const struct rms_norm_grad_args *a, size_t i)
{
    const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col;
    const float *x = a->x + row * a->x_stride + at, *dy = a->dy + row * a->dy_stride + at;
    float *dx = a->dx + row * a->dx_stride + at, squares[16] = {0}, products[16] = {0};
    for (uint32_t c = 0; c < a->n_col; c++) {
        squares[c % 16] = fmaf(x[c], x[c], squares[c % 16]);
        products[c % 16] = fmaf(dy[c] * a->w[c], x[c], products[c % 16]);
    }
    const float r = 1.0f / sqrtf(fold16(squares) / (float)a->n_col + a->eps);
    const float m = fold16(products) / (float)a->n_col * r * r;
    for (uint32_t c = 0; c < a->n_col; c++) {
        const float d = r * fmaf(-x[c], m, dy[c] * a->w[c]);
        dx[c] = a->accumulate ? dx[c] + d : d;
    }
    a->r[i] = r;
}

void rms_norm_grad_ref(const struct rms_norm_grad_args *a, const struct kern_exec *x)
{
    const struct range units = split((size_t)a->n_row * a->n_unit, x);
    for (size_t i = units.begin; i < units.end; i++)
        unit(a, i);
}
