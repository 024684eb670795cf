/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/convert.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/convert.h"

void convert_avx2(const struct convert_args *a, const struct kern_exec *x)
{
    wide_convert(a, x);
}
