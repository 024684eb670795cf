/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/cast_bf16.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/cast_bf16.h"

void cast_bf16_avx512(const struct cast_bf16_args *a, const struct kern_exec *x)
{
    wide_cast_bf16(a, x);
}
