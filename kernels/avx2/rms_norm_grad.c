/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/rms_norm_grad.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/rms_norm_grad.h"

void rms_norm_grad_avx2(const struct rms_norm_grad_args *a, const struct kern_exec *x)
{
    wide_rms_norm_grad(a, x);
}
