/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/embed.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/embed.h"

void embed_avx2(const struct embed_args *a, const struct kern_exec *x)
{
    wide_embed(a, x);
}
