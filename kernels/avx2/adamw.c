/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/adamw.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/adamw.h"

void adamw_avx2(const struct adamw_args *a, const struct kern_exec *x)
{
    wide_adamw(a, x);
}
