/* SPDX-License-Identifier: Apache-2.0 */
/* y[c] += sum_i x[i,c], or sum_i (x[i,c] * z[i,c]) * r[i], or
 * sum_i (x[i,c] * (z[i,c] - shift[i])) * r[i].
 *
 * Order: in each block of KERN_COLUMN_BLOCK rows (units counted as rows) one accumulator from +0;
 * without z an addition per row, with z the product x z rounded (with shift z - shift before it)
 * and then a fused multiply-add with r. The blocks' sums are added in ascending order to one from
 * +0, and that to y. Columns are cut among threads. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float block_sum(const struct column_sums_args *a, size_t begin, size_t end, size_t c)
{
    float sum = 0;
    for (size_t i = begin; i < end; i++) {
        const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col + c;
        const float x = a->x[row * a->x_stride + at];
        const float z = a->z ? a->z[row * a->z_stride + at] : 0;
        sum = a->z ? fmaf(x * (a->shift ? z - a->shift[i] : z), a->r[i], sum) : sum + x;
    }
    return sum;
}

void column_sums_ref(const struct column_sums_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    const size_t n = (size_t)a->n_row * a->n_unit;
    for (size_t c = columns.begin; c < columns.end; c++) {
        float sum = 0;
        for (size_t i = 0; i < n; i += KERN_COLUMN_BLOCK)
            sum += block_sum(a, i, n - i < KERN_COLUMN_BLOCK ? n : i + KERN_COLUMN_BLOCK, c);
        a->y[c] += sum;
    }
}
