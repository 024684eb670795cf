/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/kv_store.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/kv_store.h"

void kv_store_avx512(const struct kv_store_args *a, const struct kern_exec *x)
{
    wide_kv_store(a, x);
}
