/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void gate_rows_ref(const struct gate_rows_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float gate = a->gate[i * a->gate_stride + c], x_c = a->x[i * a->x_stride + c];
            const float by_gate = a->by == KERN_GATE_SIGMOID ? x_c : x_c * gate;
            a->y[i * a->y_stride + c] =
                a->by == KERN_GATE_PRODUCT ? by_gate : by_gate / (1.0f + expf(-gate));
        }
}
