/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/linear.h"

void linear_avx2(const struct linear_args *a, const struct kern_exec *x)
{
    wide_linear(a, x);
}
