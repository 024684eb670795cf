/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/attention.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/attention.h"

void attention_avx2(const struct attention_args *a, const struct kern_exec *x)
{
    wide_attention(a, x);
}

void attention_join_avx2(const struct attention_join_args *a, const struct kern_exec *x)
{
    wide_attention_join(a->of, x);
}
