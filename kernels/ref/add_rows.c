/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void add_rows_ref(const struct add_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float v = a->scale * a->x[i * a->x_stride + c];
            float *y = &a->y[i * a->y_stride + c];
            *y = a->set ? v : *y + v;
        }
}
