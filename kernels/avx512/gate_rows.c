/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/gate_rows.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/gate_rows.h"

void gate_rows_avx512(const struct gate_rows_args *a, const struct kern_exec *x)
{
    wide_gate_rows(a, x);
}
