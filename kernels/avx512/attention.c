/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/attention.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/attention.h"

void attention_avx512(const struct attention_args *a, const struct kern_exec *x)
{
    wide_attention(a, x);
}

void attention_join_avx512(const struct attention_join_args *a, const struct kern_exec *x)
{
    wide_attention_join(a->of, x);
}
