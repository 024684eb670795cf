/* SPDX-License-Identifier: Apache-2.0 */
/* ints - 16 int32 sums in an AVX-512 register, for wide/linear_int8.h and wide/linear_w4a8.h; the
 * including file defines the dot product. Threads: pure functions. */
#ifndef QUIRE_KERNELS_AVX512_INTS_H
#define QUIRE_KERNELS_AVX512_INTS_H
#include <immintrin.h>
#include <stdint.h>
#include "kernels/tiling/unroll.h"
#ifdef __AVX512BW__

#define INTS       16
#define INTS_STRIP 4 /* 6 rows x 4 sums, 4 of W, 1 of x: 29 of 32 registers */
#define ints       __m512i
#define floats     __m512

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
INLINE ints ints_add(ints a, ints b)
{
    return _mm512_add_epi32(a, b);
}
INLINE ints ints_low(ints v) /* the low halves of bytes */
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
INLINE ints ints_high(ints v)
{
    return ints_low(_mm512_srli_epi16(v, 4));
}
/* 32 bits shifted right by n, then masked. */
INLINE ints ints_field(ints v, int n, uint32_t mask)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)n), _mm512_set1_epi32((int32_t)mask));
}
INLINE ints ints_times_256(ints v)
{
    return _mm512_slli_epi32(v, 8);
}
INLINE ints ints_load_i8(const int8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE ints ints_mul(ints a, ints b) /* the low 32 bits */
{
    return _mm512_mullo_epi32(a, b);
}
INLINE ints ints_mul_16(ints a, ints b) /* of 16 bits, the low 16 */
{
    return _mm512_mullo_epi16(a, b);
}
INLINE ints ints_sub_16(ints a, ints b)
{
    return _mm512_sub_epi16(a, b);
}
/* Of numbers of 8 bits: in the halves of each int32 the number, and 256 times or once again. */
INLINE ints ints_and_256(ints v)
{
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(0xffff)),
                           _mm512_slli_epi32(v, 24));
}
INLINE ints ints_twice(ints v)
{
    return _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(0xffff)),
                           _mm512_slli_epi32(v, 16));
}
INLINE ints ints_second_bytes(ints v) /* of each 16 bits */
{
    return _mm512_srli_epi16(v, 8);
}
/* table: [16], one a byte; i: its places, 0 … 15, in bytes. */
INLINE ints ints_lookup(const uint8_t *table, ints i)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), i);
}
INLINE floats floats_set(float f)
{
    return _mm512_set1_ps(f);
}
INLINE floats floats_load(const float *p)
{
    return _mm512_load_ps(p);
}
INLINE floats floats_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE floats floats_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
INLINE void floats_store(float *p, floats v)
{
    _mm512_store_ps(p, v);
}
INLINE floats floats_fma(floats x, floats y, floats z)
{
    return _mm512_fmadd_ps(x, y, z);
}
INLINE floats floats_add(floats x, floats y)
{
    return _mm512_add_ps(x, y);
}
INLINE floats floats_mul(floats x, floats y)
{
    return _mm512_mul_ps(x, y);
}
INLINE floats ints_floats(ints v)
{
    return _mm512_cvtepi32_ps(v);
}
/* fma(scale, sum - zero * x, acc): one rounding while the difference is below 2^24. */
INLINE floats ints_group(floats acc, ints sum, floats scale, floats zero, floats x)
{
    return _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, x, _mm512_cvtepi32_ps(sum)), acc);
}

#endif
#endif
