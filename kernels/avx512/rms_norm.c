/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/rms_norm.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/rms_norm.h"

void rms_norm_avx512(const struct rms_norm_args *a, const struct kern_exec *x)
{
    wide_rms_norm(a, x);
}
