/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/adamw.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/adamw.h"

void adamw_avx512(const struct adamw_args *a, const struct kern_exec *x)
{
    wide_adamw(a, x);
}
