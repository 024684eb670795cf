/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/rope.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/rope.h"

void rope_avx2(const struct rope_args *a, const struct kern_exec *x)
{
    wide_rope(a, x);
}
