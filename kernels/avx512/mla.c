/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/mla.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/mla.h"

void mla_avx512(const struct mla_args *a, const struct kern_exec *x)
{
    if (a->kv_dtype == DT_F8_E4M3)
        mla_ref(a, x); /* on devices only */
    else
        wide_mla(a, x);
}
