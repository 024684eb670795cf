/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_w4a8.h in AVX2 registers with AVX-VNNI's dot product. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"

INLINE ints ints_dot(ints sum, ints w, ints x)
{
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}
#include "kernels/wide/linear_w4a8.h"

void linear_w4a8_avx2_vnni(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    linear_w4a8_ints(a, x);
}
