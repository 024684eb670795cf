/* SPDX-License-Identifier: Apache-2.0 */
/* x[i,c] = cap * tanh(x[i,c] / cap), source: arXiv:2408.00118; or limited to -cap … cap.
 * Columns are divided among threads too, because a row of logits is long. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void soft_cap_ref(const struct soft_cap_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (size_t i = 0; i < a->n_row; i++)
        for (size_t c = columns.begin; c < columns.end; c++) {
            float *at = a->x + i * a->x_stride + c;
            const float low = *at < -a->cap ? -a->cap : *at; /* NaN stays */
            *at = !a->hard ? a->cap * tanhf(*at / a->cap) : low > a->cap ? a->cap : low;
        }
}
