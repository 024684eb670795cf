/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/kv_store.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/kv_store.h"

void kv_store_avx2(const struct kv_store_args *a, const struct kern_exec *x)
{
    wide_kv_store(a, x);
}
