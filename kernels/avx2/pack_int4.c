/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/pack_int4.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/pack_int4.h"

void pack_int4_avx2(const struct pack_int4_args *a, const struct kern_exec *x)
{
    wide_pack_int4(a, x);
}
