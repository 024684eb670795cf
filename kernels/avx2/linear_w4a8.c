/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_w4a8.h in AVX2 registers. vpmaddubsw's sums of two products, at most
 * 2 * 15 * 127, always fit 16 bits. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"

INLINE ints ints_dot(ints sum, ints w, ints x)
{
    __m256i two = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}
#include "kernels/wide/linear_w4a8.h"

void linear_w4a8_avx2(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    linear_w4a8_ints(a, x);
}
