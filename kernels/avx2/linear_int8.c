/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_int8.h in AVX2 registers. vpmaddubsw adds two products in 16 bits, with
 * saturation: of |w|, at most 128, and of x with w's sign, at most 127, two products always fit. So
 * weights are made signed first, and have no offset. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"

#define INTS_WEIGHT_OFFSET 0
INLINE ints ints_dot(ints sum, ints w, ints x)
{
    __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
    __m256i two = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}
#include "kernels/wide/linear_int8.h"

void linear_int8_avx2(const struct linear_int8_args *a, const struct kern_exec *x)
{
    linear_int8_ints(a, x);
}
