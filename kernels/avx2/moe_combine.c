/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/moe_combine.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/moe_combine.h"

void moe_combine_avx2(const struct moe_combine_args *a, const struct kern_exec *x)
{
    wide_moe_combine(a, x);
}
