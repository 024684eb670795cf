/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/layer_norm.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/layer_norm.h"

void layer_norm_avx2(const struct layer_norm_args *a, const struct kern_exec *x)
{
    wide_layer_norm(a, x);
}
