/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/silu_mul.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/silu_mul.h"

void silu_mul_avx2(const struct silu_mul_args *a, const struct kern_exec *x)
{
    wide_silu_mul(a, x);
}
