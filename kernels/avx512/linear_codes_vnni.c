/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/codes_ints.h in AVX-512 registers with AVX-512-VNNI's dot product. */
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"

INLINE ints pairs_dot(ints sum, ints w, ints x)
{
    sum = _mm512_dpwssd_epi32(sum, w, x);
    __asm__("" : "+v"(sum)); /* else gcc 12 copies sums, and spills */
    return sum;
}
INLINE ints bytes_dot(ints sum, ints w, ints x)
{
    sum = _mm512_dpbusd_epi32(sum, w, x);
    __asm__("" : "+v"(sum)); /* else gcc 12 copies sums, and spills */
    return sum;
}
INLINE ints bytes_sum(ints sum)
{
    return sum;
}
/* The int32 of both planes of halves. */
INLINE ints bytes_planes_sum(ints low, ints high)
{
    return ints_add(low, ints_times_256(high));
}
/* 8 products of codes of 6 bits by a plane, which is multiplied by `times`. */
INLINE void bytes_two(ints *sum, const ints w[2], ints x0, ints x1, const int times)
{
    (void)times; /* by bytes_two_sum */
    *sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(*sum, w[0], x0), w[1], x1);
}
INLINE ints bytes_two_sum(ints low, ints high)
{
    return ints_add(low, ints_times_256(high));
}
#include "kernels/wide/codes_ints.h"

void linear_codes_avx512_vnni(const struct linear_codes_args *a, const struct kern_exec *x)
{
    if (a->by.w.codes.by_ints)
        codes_ints_product(&a->by, x);
    else
        linear_codes_avx512(a, x);
}
