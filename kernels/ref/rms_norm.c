/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] = x[i,c] / sqrt(mean_c(x[i,:]^2) + eps) * w[c].   Source: arXiv:1910.07467.
 *
 * Order: 16 f32 lanes; lane l adds the squares of columns l, l + 16, l + 32, … each by one fused
 * multiply-add; the lanes are folded by halves. Then y = (x * r) * w with r = 1 / sqrt(sum / n_col
 * + eps), every step rounded. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void rms_norm_ref(const struct rms_norm_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + i * a->x_stride;
        float lane[16] = {0};
        for (uint32_t c = 0; c < a->n_col; c++)
            lane[c % 16] = fmaf(row[c], row[c], lane[c % 16]);
        float r = 1.0f / sqrtf(fold16(lane) / (float)a->n_col + a->eps);
        for (uint32_t c = 0; c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c, row[c] * r * a->w[c]);
    }
}
