/* SPDX-License-Identifier: Apache-2.0 */
/* vec_half - half-precision elements to and from the lanes of vec.h, and elements that alternate in
 * memory. Contract: avx512/vec_half.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_HALF_H
#define QUIRE_KERNELS_VEC_HALF_H
#ifdef __AVX2__

INLINE struct vec vec_load_f16(const uint16_t *p)
{
    EACH(r, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
INLINE __m256 vec_widen_bf16(const uint16_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE struct vec vec_load_bf16(const uint16_t *p)
{
    EACH(r, vec_widen_bf16(p), vec_widen_bf16(p + 8));
}
INLINE struct vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    uint16_t whole[16] = {0};
    memcpy(whole, p, n * sizeof *p);
    return vec_load_bf16(whole);
}
INLINE __m256i vec_load_bits(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE struct vec vec_load_even(const uint16_t *pairs)
{
    EACH(r, _mm256_castsi256_ps(_mm256_slli_epi32(vec_load_bits(pairs), 16)),
         _mm256_castsi256_ps(_mm256_slli_epi32(vec_load_bits(pairs + 16), 16)));
}
INLINE struct vec vec_load_odd(const uint16_t *pairs)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    EACH(r, _mm256_castsi256_ps(_mm256_and_si256(vec_load_bits(pairs), high)),
         _mm256_castsi256_ps(_mm256_and_si256(vec_load_bits(pairs + 16), high)));
}
INLINE __m256i vec_round_bf16(__m256 x) /* in the low half of each lane */
{
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16),
                              _mm256_or_si256(high, _mm256_set1_epi32(0x40)),
                              _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
INLINE __m256 vec_bf16_pairs_half(__m256 a, __m256 b)
{
    const __m256i high = _mm256_slli_epi32(vec_round_bf16(b), 16);
    return _mm256_castsi256_ps(_mm256_or_si256(vec_round_bf16(a), high));
}
INLINE struct vec vec_bf16_pairs(struct vec x, struct vec y)
{
    EACH(r, vec_bf16_pairs_half(x.a, y.a), vec_bf16_pairs_half(x.b, y.b));
}
INLINE __m256 vec_even_half(__m256 x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16));
}
INLINE struct vec vec_even_halves(struct vec x)
{
    EACH(r, vec_even_half(x.a), vec_even_half(x.b));
}
INLINE __m256 vec_odd_half(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}
INLINE struct vec vec_odd_halves(struct vec x)
{
    EACH(r, vec_odd_half(x.a), vec_odd_half(x.b));
}
INLINE void vec_store_bf16_n(uint16_t *p, struct vec x, uint32_t n)
{
    /* packus interleaves the 128-bit halves of its operands; 0xd8 puts quarters 0, 2, 1, 3 in
     * order */
    __m256i both = _mm256_packus_epi32(vec_round_bf16(x.a), vec_round_bf16(x.b));
    both = _mm256_permute4x64_epi64(both, 0xd8);
    if (n == 16) {
        _mm256_storeu_si256((__m256i *)(void *)p, both);
    } else {
        uint16_t whole[16];
        _mm256_storeu_si256((__m256i *)(void *)whole, both);
        memcpy(p, whole, n * sizeof *p);
    }
}

INLINE void vec_store_f16(uint16_t *p, struct vec x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void vec_load_pairs(const float *p, struct vec *even, struct vec *odd)
{
    for (int half = 0; half < 2; half++) {
        __m256 x = _mm256_loadu_ps(p + 16 * half), y = _mm256_loadu_ps(p + 16 * half + 8);
        __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88)); /* x0 x2 y0 y2 | x4 x6 y4 y6 */
        __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
        __m256 e_ordered = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
        __m256 o_ordered = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
        *(half ? &even->b : &even->a) = e_ordered;
        *(half ? &odd->b : &odd->a) = o_ordered;
    }
}
INLINE void vec_store_pairs_half(float *p, __m256 even, __m256 odd)
{
    __m256 x = _mm256_unpacklo_ps(even, odd), y = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(x, y, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(x, y, 0x31));
}
INLINE void vec_store_pairs(float *p, struct vec even, struct vec odd)
{
    vec_store_pairs_half(p, even.a, odd.a);
    vec_store_pairs_half(p + 16, even.b, odd.b);
}

#endif
#endif
