/* SPDX-License-Identifier: Apache-2.0 */
/* vec_codes - values of codes of 4 bits in the lanes of vec.h. Contract: avx512/vec_codes.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_CODES_H
#define QUIRE_KERNELS_VEC_CODES_H
#ifdef __AVX2__

struct vec_two {
    struct vec low, high;
};

INLINE __m128i vec_low_codes(const uint8_t *p)
{
    return _mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)p), _mm_set1_epi8(15));
}
INLINE __m128i vec_high_codes(const uint8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15));
}
INLINE struct vec vec_of_i8(__m128i b)
{
    EACH(r, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
         _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))));
}
INLINE __m256 vec_low_half(__m256i b)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
}
INLINE __m256 vec_high_half(__m256i b)
{
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}
INLINE struct vec_two vec_code_halves(const uint8_t *p)
{
    const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)),
                  b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8)));
    const struct vec low = {vec_low_half(a), vec_low_half(b)},
                     high = {vec_high_half(a), vec_high_half(b)};
    return (struct vec_two){low, high};
}
INLINE struct vec_two vec_code_ints(const uint8_t *p, const int8_t *table)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (struct vec_two){vec_of_i8(_mm_shuffle_epi8(t, vec_low_codes(p))),
                            vec_of_i8(_mm_shuffle_epi8(t, vec_high_codes(p)))};
}
/* Of 8 codes: bit 3 of a code, which the permutations ignore, selects the table's half. */
INLINE __m256 vec_lookup_half(struct vec table, __m128i codes)
{
    const __m256i i = _mm256_cvtepu8_epi32(codes);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.a, i),
                            _mm256_permutevar8x32_ps(table.b, i),
                            _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}
INLINE struct vec vec_lookup(struct vec table, __m128i codes)
{
    EACH(r, vec_lookup_half(table, codes), vec_lookup_half(table, _mm_srli_si128(codes, 8)));
}
INLINE struct vec_two vec_code_floats(const uint8_t *p, struct vec table)
{
    return (struct vec_two){vec_lookup(table, vec_low_codes(p)),
                            vec_lookup(table, vec_high_codes(p))};
}

#endif
#endif
