/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/column_sums.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/column_sums.h"

void column_sums_avx512(const struct column_sums_args *a, const struct kern_exec *x)
{
    wide_column_sums(a, x);
}
