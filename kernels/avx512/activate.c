/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/activate.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/activate.h"

void activate_avx512(const struct activate_args *a, const struct kern_exec *x)
{
    wide_activate(a, x);
}
