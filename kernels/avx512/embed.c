/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/embed.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/embed.h"

void embed_avx512(const struct embed_args *a, const struct kern_exec *x)
{
    wide_embed(a, x);
}
