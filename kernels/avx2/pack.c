/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/pack.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/pack.h"

void pack_avx2(const struct pack_args *a, const struct kern_exec *x)
{
    wide_pack(a, x);
}
