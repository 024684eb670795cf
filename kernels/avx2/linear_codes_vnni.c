/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/codes_ints.h in AVX2 registers with AVX-VNNI's dot product. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"

INLINE ints pairs_dot(ints sum, ints w, ints x)
{
    sum = _mm256_dpwssd_avx_epi32(sum, w, x);
    /* else gcc 12 adds products to each other first, and spills */
    __asm__("" : "+x"(sum));
    return sum;
}
INLINE ints bytes_dot(ints sum, ints w, ints x)
{
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}
INLINE ints bytes_sum(ints sum)
{
    return sum;
}
#include "kernels/wide/codes_ints.h"

void linear_codes_avx2_vnni(const struct linear_codes_args *a, const struct kern_exec *x)
{
    if (a->by.w.codes.by_ints)
        codes_ints_product(&a->by, x);
    else
        linear_codes_avx2(a, x);
}
