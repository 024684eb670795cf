/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_int8.h in AVX-512 registers with AVX-512-VNNI's dot product. */
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"

#define INTS_WEIGHT_OFFSET 128
INLINE ints ints_dot(ints sum, ints w, ints x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
#include "kernels/wide/linear_int8.h"

void linear_int8_avx512_vnni(const struct linear_int8_args *a, const struct kern_exec *x)
{
    linear_int8_ints(a, x);
}
