/* SPDX-License-Identifier: Apache-2.0 */
/* ints - 8 int32 sums in an AVX2 register, for wide/linear_int8.h; the including file defines the
 * dot product. Threads: pure functions. */
#ifndef QUIRE_KERNELS_AVX2_INTS_H
#define QUIRE_KERNELS_AVX2_INTS_H
#include <immintrin.h>
#include <stdint.h>
#include "kernels/tiling/unroll.h"
#ifdef __AVX2__

#define INTS       8
#define INTS_STRIP 2 /* 6 rows x 2 sums, 2 of W, 1 of x: 15 of 16 registers */
#define ints       __m256i
#define floats     __m256

INLINE ints ints_set(int32_t i)
{
    return _mm256_set1_epi32(i);
}
INLINE ints ints_load(const int32_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}
INLINE void ints_store(int32_t *p, ints v)
{
    _mm256_store_si256((__m256i *)(void *)p, v);
}
INLINE ints ints_add(ints a, ints b)
{
    return _mm256_add_epi32(a, b);
}
INLINE ints ints_low(ints v) /* the low halves of bytes */
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
INLINE ints ints_high(ints v)
{
    return ints_low(_mm256_srli_epi16(v, 4));
}
INLINE floats floats_set(float f)
{
    return _mm256_set1_ps(f);
}
INLINE floats floats_load(const float *p)
{
    return _mm256_load_ps(p);
}
INLINE void floats_store(float *p, floats v)
{
    _mm256_store_ps(p, v);
}
/* fma(scale, sum - zero * x, acc): one rounding while the difference is below 2^24. */
INLINE floats ints_group(floats acc, ints sum, floats scale, floats zero, floats x)
{
    return _mm256_fmadd_ps(scale, _mm256_fnmadd_ps(zero, x, _mm256_cvtepi32_ps(sum)), acc);
}

#endif
#endif
