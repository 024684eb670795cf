/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_int8.h in AVX2 registers with AVX-VNNI's dot product. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"

#define INTS_WEIGHT_OFFSET 128
INLINE ints ints_dot(ints sum, ints w, ints x)
{
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}
#include "kernels/wide/linear_int8.h"

void linear_int8_avx2_vnni(const struct linear_int8_args *a, const struct kern_exec *x)
{
    linear_int8_ints(a, x);
}
