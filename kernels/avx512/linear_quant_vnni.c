/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/wide/linear_quant.h in AVX-512 registers with AVX-512-VNNI's dot product. */
#include <immintrin.h>
#include <stdint.h>
#include "kernels/unroll.h"
#include "kernels/variants.h"

#define INTS        16
#define INTS_STRIP  4 /* 6 rows x 4 sums, 4 of W, 1 of x: 29 of 32 registers */
#define INTS_ON_TOP 128
#define ints        __m512i

INLINE ints ints_set(int32_t i)
{
    return _mm512_set1_epi32(i);
}
INLINE ints ints_load(const int32_t *p)
{
    return _mm512_load_si512(p);
}
INLINE void ints_store(int32_t *p, ints v)
{
    _mm512_store_si512(p, v);
}
INLINE ints ints_dot(ints sum, ints w, ints x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
#include "kernels/wide/linear_quant.h"

void linear_quant_avx512_vnni(const struct linear_quant_args *a, const struct kern_exec *x)
{
    linear_quant_ints(a, x);
}
