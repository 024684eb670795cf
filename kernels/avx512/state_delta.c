/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/state_delta.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/state_delta.h"

void state_delta_avx512(const struct state_delta_args *a, const struct kern_exec *x)
{
    wide_state_delta(a, x);
}
