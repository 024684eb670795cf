/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] = silu(x[i,c]) * x[i, n_col + c],  silu(z) = z / (1 + exp(-z)).   Source:
 * arXiv:2002.05202. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void silu_mul_ref(const struct silu_mul_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *gate = a->x + i * a->x_stride, *up = gate + a->n_col;
        for (uint32_t c = 0; c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c,
                        gate[c] / (1.0f + expf(-gate[c])) * up[c]);
    }
}
