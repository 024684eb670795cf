/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/gate_rows.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/gate_rows.h"

void gate_rows_avx2(const struct gate_rows_args *a, const struct kern_exec *x)
{
    wide_gate_rows(a, x);
}
