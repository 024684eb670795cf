/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/row_pass.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/row_pass.h"

void row_pass_avx2(const struct row_pass_args *a, const struct kern_exec *x)
{
    (void)x;
    wide_row_pass(a);
}
