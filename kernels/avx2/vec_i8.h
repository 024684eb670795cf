/* SPDX-License-Identifier: Apache-2.0 */
/* vec_i8 - int8 elements to and from the lanes of vec.h. Contract: avx512/vec_i8.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_I8_H
#define QUIRE_KERNELS_VEC_I8_H
#ifdef __AVX2__

INLINE __m256 vec_widen_i8(const int8_t *p) /* 8 of them */
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}
INLINE struct vec vec_load_i8(const int8_t *p)
{
    EACH(r, vec_widen_i8(p), vec_widen_i8(p + 8));
}
INLINE struct vec vec_load_i8_n(const int8_t *p, uint32_t n)
{
    int8_t whole[16] = {0};
    memcpy(whole, p, n);
    return vec_load_i8(whole);
}
INLINE void vec_store_i8_n(int8_t *p, struct vec x, uint32_t n)
{
    __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    /* packs interleaves the 128-bit halves of its operands; 0xd8 puts quarters 0, 2, 1, 3 in
     * order */
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    int8_t whole[16];
    _mm_storeu_si128((__m128i *)(void *)whole, bytes);
    memcpy(p, whole, n);
}
INLINE void vec_store_i16(int16_t *p, struct vec x)
{
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(both, 0xd8));
}
INLINE struct vec vec_load_i32(const int32_t *p)
{
    const __m256i *v = (const __m256i *)(const void *)p;
    EACH(r, _mm256_cvtepi32_ps(_mm256_loadu_si256(v)),
         _mm256_cvtepi32_ps(_mm256_loadu_si256(v + 1)));
}
INLINE struct vec vec_load_i32_less(const int32_t *p, uint32_t top)
{
    const __m256i *v = (const __m256i *)(const void *)p, t = _mm256_set1_epi32((int32_t)top);
    EACH(r, _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(v), t)),
         _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(v + 1), t)));
}

#endif
#endif
