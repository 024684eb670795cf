/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/attention_train.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/attention_train.h"

void attention_train_avx2(const struct attention_train_args *a, const struct kern_exec *x)
{
    wide_attention_train(a, x);
}
