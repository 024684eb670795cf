/* SPDX-License-Identifier: Apache-2.0 */
/* y[c,i] = x[i,c]; a conversion rounds to nearest even. */
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void transpose_ref(const struct transpose_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (size_t c = columns.begin; c < columns.end; c++)
        for (size_t i = 0; i < a->n_row; i++)
            element_set(a->y, a->y_dtype, c * a->y_stride + i,
                        element_f32(a->x, a->x_dtype, i * a->x_stride + c));
}
