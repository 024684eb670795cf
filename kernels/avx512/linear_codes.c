/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_codes.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/linear_codes.h"

void linear_codes_avx512(const struct linear_codes_args *a, const struct kern_exec *x)
{
    wide_linear_codes(&a->by, x);
}
