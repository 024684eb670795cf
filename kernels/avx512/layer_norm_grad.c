/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/layer_norm_grad.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/layer_norm_grad.h"

void layer_norm_grad_avx512(const struct layer_norm_grad_args *a, const struct kern_exec *x)
{
    wide_layer_norm_grad(a, x);
}
