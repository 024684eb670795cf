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
/* The int32 of both planes of halves. */
INLINE ints bytes_planes_sum(ints low, ints high)
{
    return ints_add(bytes_sum(low), _mm512_madd_epi16(high, _mm512_set1_epi16(256)));
}
/* 8 products of codes of 6 bits by a plane, which is multiplied by `times`. */
INLINE void bytes_two(ints *sum, const ints w[2], ints x0, ints x1, const int times)
{
    const ints four =
        _mm512_add_epi16(_mm512_maddubs_epi16(w[0], x0), _mm512_maddubs_epi16(w[1], x1));
    *sum = ints_add(*sum, _mm512_madd_epi16(four, _mm512_set1_epi16((int16_t)times)));
}
INLINE ints bytes_two_sum(ints low, ints high)
{
    return ints_add(low, high);
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
