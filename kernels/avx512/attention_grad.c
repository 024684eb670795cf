/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/attention_grad.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/attention_grad.h"

void attention_grad_avx512(const struct attention_grad_args *a, const struct kern_exec *x)
{
    wide_attention_grad(a, x);
}
