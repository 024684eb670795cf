/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/state_conv.h in AVX-512 registers. */
#include "kernels/variants.h"
#include "kernels/wide/state_conv.h"

void state_conv_avx512(const struct state_conv_args *a, const struct kern_exec *x)
{
    wide_state_conv(a, x);
}
