/* SPDX-License-Identifier: Apache-2.0 */
/* The formula is in ops_moe.h; exp is the C library's. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void moe_add_shared_ref(const struct moe_add_shared_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (size_t i = 0; i < a->n_row; i++) {
        const float share = 1 / (1 + expf(-a->scores[i * a->score_stride]));
        for (size_t c = columns.begin; c < columns.end; c++) {
            float *y = &a->y[i * a->y_stride + c];
            *y = fmaf(share, a->x[i * a->x_stride + c], *y);
        }
    }
}
