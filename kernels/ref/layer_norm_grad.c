/* SPDX-License-Identifier: Apache-2.0 */
/* dx[c] = r * ((g[c] - n) - d[c] * m), g = dy * w, d = x - mean, n = sum_c g / n_col,
 * m = ((sum_c g d / n_col) * r) * r.   Source: arXiv:1607.06450, differentiated.
 *
 * Order: mean and r as in ref/layer_norm.c; in the same 16 f32 lanes the sums of g (rounded), and
 * the products of g and d, each by one fused multiply-add, folded by halves. (g - n) - d m is a
 * subtraction and one fused multiply-add; the old dx is added last. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float mean_of(const float *x, uint32_t n)
{
    float sums[16] = {0};
    for (uint32_t c = 0; c < n; c++)
        sums[c % 16] += x[c];
    return fold16(sums) / (float)n;
}

static void unit(const struct layer_norm_grad_args *a, size_t i)
{
    const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col;
    const float *x = a->x + row * a->x_stride + at, *dy = a->dy + row * a->dy_stride + at;
    float *dx = a->dx + row * a->dx_stride + at;
    const float mean = mean_of(x, a->n_col);
    float squares[16] = {0}, sums[16] = {0}, products[16] = {0};
    for (uint32_t c = 0; c < a->n_col; c++) {
        const float d = x[c] - mean, g = dy[c] * a->w[c];
        squares[c % 16] = fmaf(d, d, squares[c % 16]);
        sums[c % 16] += g;
        products[c % 16] = fmaf(g, d, products[c % 16]);
    }
    const float r = 1.0f / sqrtf(fold16(squares) / (float)a->n_col + a->eps);
    const float n = fold16(sums) / (float)a->n_col;
    const float m = fold16(products) / (float)a->n_col * r * r;
    for (uint32_t c = 0; c < a->n_col; c++) {
        const float d = r * fmaf(-(x[c] - mean), m, dy[c] * a->w[c] - n);
        dx[c] = a->accumulate ? dx[c] + d : d;
    }
    a->mean[i] = mean;
    a->r[i] = r;
}

void layer_norm_grad_ref(const struct layer_norm_grad_args *a, const struct kern_exec *x)
{
    const struct range units = split((size_t)a->n_row * a->n_unit, x);
    for (size_t i = units.begin; i < units.end; i++)
        unit(a, i);
}
