/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] = x[i,c]; rounded to nearest even. */
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void convert_ref(const struct convert_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        for (size_t c = 0; c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c,
                        element_f32(a->x, a->x_dtype, i * a->x_stride + c));
}
