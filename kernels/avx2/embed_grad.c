/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/embed_grad.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/embed_grad.h"

void embed_grad_avx2(const struct embed_grad_args *a, const struct kern_exec *x)
{
    wide_embed_grad(a, x);
}
