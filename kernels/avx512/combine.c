/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/combine.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/combine.h"

void combine_avx512(const struct combine_args *a, const struct kern_exec *x)
{
    wide_combine(a, x);
}
