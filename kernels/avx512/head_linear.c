/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/head_linear.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/head_linear.h"

void head_linear_avx512(const struct head_linear_args *a, const struct kern_exec *x)
{
    wide_head_linear(a, x);
}
