/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/split.h"
#include "kernels/variants.h"

void cast_bf16_ref(const struct cast_bf16_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        for (uint32_t c = 0; c < a->n_col; c++)
            a->y[i * a->y_stride + c] = f32_to_bf16(a->x[i * a->x_stride + c]);
}
