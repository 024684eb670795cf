/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/pack_quant.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/pack_quant.h"

void pack_quant_avx2(const struct pack_quant_args *a, const struct kern_exec *x)
{
    wide_pack_quant(a, x);
}
