/* SPDX-License-Identifier: Apache-2.0 */
/* The formula is in ops_moe.h. */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void moe_add_bias_ref(const struct moe_add_bias_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (uint32_t e = 0; e < a->of.n_group; e++) {
        const char *at = (const char *)a->bias + e * a->of.w_stride;
        const float *bias = (const float *)(const void *)at;
        for (uint32_t p = a->of.starts[e]; p < a->of.starts[e + 1]; p++)
            for (size_t c = columns.begin; c < columns.end; c++)
                a->y[p * a->y_stride + c] += bias[c];
    }
}
