/* SPDX-License-Identifier: Apache-2.0 */
/* attention_train with products of bf16 by vdpbf16ps, 32 multiply-adds an instruction; of f32 it is
 * attention_train_avx512. Formula and order: ref/attention_train.c. */
#include "kernels/variants.h"
#include "kernels/wide/attention_train.h"

void attention_train_avx512_bf16(const struct attention_train_args *a, const struct kern_exec *x)
{
    if (a->compute == DT_BF16)
        wide_attention_train(a, x);
    else
        attention_train_avx512(a, x);
}
