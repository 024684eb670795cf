/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/quant_rows.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/quant_rows.h"

void quant_rows_avx2(const struct quant_rows_args *a, const struct kern_exec *x)
{
    wide_quant_rows(a, x);
}
