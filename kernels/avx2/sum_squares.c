/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/sum_squares.h in AVX2 registers. */
#include "kernels/variants.h"
#include "kernels/wide/sum_squares.h"

void sum_squares_avx2(const struct sum_squares_args *a, const struct kern_exec *x)
{
    wide_sum_squares(a, x);
}
