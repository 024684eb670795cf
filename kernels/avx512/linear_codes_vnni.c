/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/codes_ints.h in AVX-512 registers with AVX-512-VNNI's dot product. */
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"

INLINE ints pairs_dot(ints sum, ints w, ints x)
{
    return _mm512_dpwssd_epi32(sum, w, x);
}
INLINE ints bytes_dot(ints sum, ints w, ints x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
INLINE ints bytes_sum(ints sum)
{
    return sum;
}
#include "kernels/wide/codes_ints.h"

void linear_codes_avx512_vnni(const struct linear_codes_args *a, const struct kern_exec *x)
{
    if (a->by.w.codes.by_ints)
        codes_ints_product(&a->by, x);
    else
        linear_codes_avx512(a, x);
}
