/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/quant_rows.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/quant_rows.h"

void quant_rows_avx512(const struct quant_rows_args *a, const struct kern_exec *x)
{
    wide_quant_rows(a, x);
}
