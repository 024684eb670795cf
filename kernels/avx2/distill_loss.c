/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/distill_loss.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/distill_loss.h"

void distill_loss_avx2(const struct distill_loss_args *a, const struct kern_exec *x)
{
    wide_distill_loss(a, x);
}
