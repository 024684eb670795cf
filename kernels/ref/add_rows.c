/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tiling/grow.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void add_rows_ref(const struct add_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float scale = row_scale(a, i);
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float v = scale * a->x[i * a->x_stride + c];
            float *y = &a->y[i * a->y_stride + c];
            *y = a->set ? v : *y + v;
        }
    }
}
