/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/add_rows.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/add_rows.h"

void add_rows_avx2(const struct add_rows_args *a, const struct kern_exec *x)
{
    wide_add_rows(a, x);
}
