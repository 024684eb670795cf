/* SPDX-License-Identifier: Apache-2.0 */
/* vec_i8 - int8 elements to and from the lanes of vec.h. avx2/vec_i8.h does the same.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_I8_H
#define QUIRE_KERNELS_VEC_I8_H
#ifdef __AVX512BW__

INLINE struct vec vec_widen_i8(__m128i b)
{
    return vec_of(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)));
}
INLINE struct vec vec_load_i8(const int8_t *p)
{
    return vec_widen_i8(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE struct vec vec_load_i8_n(const int8_t *p, uint32_t n)
{
    return vec_widen_i8(_mm_maskz_loadu_epi8(vec_mask(n), p));
}
INLINE void vec_store_i8_n(int8_t *p, struct vec a, uint32_t n) /* integers -128 … 127 */
{
    _mm_mask_storeu_epi8(p, vec_mask(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
INLINE void vec_store_i16(int16_t *p, struct vec a) /* integers; nearest that int16 has */
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
INLINE struct vec vec_load_i32(const int32_t *p)
{
    return vec_of(_mm512_cvtepi32_ps(_mm512_loadu_si512(p)));
}
INLINE struct vec vec_load_i32_less(const int32_t *p, uint32_t top) /* p[l] - top, wrapping */
{
    return vec_of(_mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32((int32_t)top))));
}

#endif
#endif
