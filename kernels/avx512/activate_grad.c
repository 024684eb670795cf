/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/activate_grad.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/activate_grad.h"

void activate_grad_avx512(const struct activate_grad_args *a, const struct kern_exec *x)
{
    wide_activate_grad(a, x);
}
