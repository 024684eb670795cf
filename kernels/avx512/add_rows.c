/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/add_rows.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/add_rows.h"

void add_rows_avx512(const struct add_rows_args *a, const struct kern_exec *x)
{
    wide_add_rows(a, x);
}
