/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] += sum_j weights[i,j] * x[places[i,j],c], one fused multiply-add for each j, ascending;
 * set: from +0. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void moe_combine_ref(const struct moe_combine_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (size_t i = 0; i < a->n_row; i++)
        for (size_t c = columns.begin; c < columns.end; c++) {
            float y = a->set ? 0 : a->y[i * a->y_stride + c];
            for (size_t j = i * a->n_used; j < (i + 1) * a->n_used; j++)
                y = fmaf(a->weights ? a->weights[j] : 1, a->x[a->places[j] * a->x_stride + c], y);
            a->y[i * a->y_stride + c] = y;
        }
}
