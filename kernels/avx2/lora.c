/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/lora_shrink.h and lora_expand.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/lora_expand.h"
#include "kernels/wide/lora_shrink.h"

void lora_shrink_avx2(const struct lora_shrink_args *a, const struct kern_exec *x)
{
    wide_lora_shrink(a, x);
}

void lora_expand_avx2(const struct lora_expand_args *a, const struct kern_exec *x)
{
    wide_lora_expand(a, x);
}
