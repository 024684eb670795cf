/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/soft_cap.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/soft_cap.h"

void soft_cap_avx512(const struct soft_cap_args *a, const struct kern_exec *x)
{
    wide_soft_cap(a, x);
}
