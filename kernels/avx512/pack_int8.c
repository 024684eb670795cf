/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/pack_int8.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/pack_int8.h"

void pack_int8_avx512(const struct pack_int8_args *a, const struct kern_exec *x)
{
    wide_pack_int8(a, x);
}
