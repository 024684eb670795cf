/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/codes_ints.h in AVX-512 registers, and kernels/wide/linear_codes.h. */
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"

INLINE ints pairs_dot(ints sum, ints w, ints x)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}
/* In 16 bits: 16 products of at most 15 * 128 in each half of an int32. */
INLINE ints bytes_dot(ints sum, ints w, ints x)
{
    sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x));
    return sum;
}
INLINE ints bytes_sum(ints sum)
{
    return _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
}
#include "kernels/wide/codes_ints.h"
#include "kernels/wide/linear_codes.h"

void linear_codes_avx512(const struct linear_codes_args *a, const struct kern_exec *x)
{
    if (a->by.w.codes.by_ints)
        codes_ints_product(&a->by, x);
    else
        wide_linear_codes(&a->by, x);
}
