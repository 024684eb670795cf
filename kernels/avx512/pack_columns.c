/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/pack_columns.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/pack_columns.h"

void pack_columns_avx512(const struct pack_columns_args *a, const struct kern_exec *x)
{
    wide_pack_columns(a, x);
}
