/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/transpose.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/transpose.h"

void transpose_avx512(const struct transpose_args *a, const struct kern_exec *x)
{
    wide_transpose(a, x);
}
