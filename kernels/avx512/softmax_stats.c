/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/softmax_stats.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/softmax_stats.h"

void softmax_stats_avx512(const struct softmax_stats_args *a, const struct kern_exec *x)
{
    wide_softmax_stats(a, x);
}
