/* SPDX-License-Identifier: Apache-2.0 */
/* attention_grad with products of bf16 by vdpbf16ps, 32 multiply-adds an instruction; of f32 it is
 * attention_grad_avx512. Formula and order: ref/attention_grad.c. */
#include "kernels/variants.h"
#include "kernels/wide/attention_grad.h"

void attention_grad_avx512_bf16(const struct attention_grad_args *a, const struct kern_exec *x)
{
    if (a->of.compute == DT_BF16)
        wide_attention_grad(a, x);
    else
        attention_grad_avx512(a, x);
}
