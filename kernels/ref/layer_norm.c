/* SPDX-License-Identifier: Apache-2.0 */
/* d = x - mean(x);  y[i,c] = d[c] / sqrt(mean(d^2) + eps) * w[c] + b[c]
 * Source: arXiv:1607.06450.
 *
 * Order: 16 f32 lanes; lane l adds columns l, l + 16, l + 32 …; the lanes are folded by halves, and
 * the sum divided by n_col is the mean. Then in the same lanes the squares of d, each by one fused
 * multiply-add. y = (d * r) * w with r = 1 / sqrt(sum / n_col + eps), every step rounded; the bias
 * by a fused multiply-add. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void layer_norm_ref(const struct layer_norm_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *row = a->x + (a->rows ? a->rows[i] : i) * a->x_stride;
        float sums[16] = {0}, squares[16] = {0};
        for (uint32_t c = 0; c < a->n_col; c++)
            sums[c % 16] += row[c];
        const float mean = fold16(sums) / (float)a->n_col;
        for (uint32_t c = 0; c < a->n_col; c++)
            squares[c % 16] = fmaf(row[c] - mean, row[c] - mean, squares[c % 16]);
        const float r = 1.0f / sqrtf(fold16(squares) / (float)a->n_col + a->eps);
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float y = (row[c] - mean) * r;
            element_set(a->y, a->y_dtype, i * a->y_stride + c,
                        a->b ? fmaf(y, a->w[c], a->b[c]) : y * a->w[c]);
        }
    }
}
