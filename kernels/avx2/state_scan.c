/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/state_scan.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/state_scan.h"

void state_scan_avx2(const struct state_scan_args *a, const struct kern_exec *x)
{
    wide_state_scan(a, x);
}
