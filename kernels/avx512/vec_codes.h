/* SPDX-License-Identifier: Apache-2.0 */
/* vec_codes - values of codes of 4 bits in the lanes of vec.h: p holds 16 bytes, and lane l of
 * `low` is the value of the low half of byte l, lane l of `high` that of its high half.
 * avx2/vec_codes.h does the same. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_CODES_H
#define QUIRE_KERNELS_VEC_CODES_H
#ifdef __AVX512BW__

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
/* The codes themselves, 0 … 15. */
INLINE struct vec_two vec_code_halves(const uint8_t *p)
{
    const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (struct vec_two){
        vec_of(_mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15)))),
        vec_of(_mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4))),
    };
}
/* table: [16] whole numbers */
INLINE struct vec_two vec_code_ints(const uint8_t *p, const int8_t *table)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (struct vec_two){vec_widen_i8(_mm_shuffle_epi8(t, vec_low_codes(p))),
                            vec_widen_i8(_mm_shuffle_epi8(t, vec_high_codes(p)))};
}
INLINE struct vec vec_lookup(struct vec table, __m128i codes)
{
    return vec_of(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table.v));
}
/* table: 16 numbers, one a lane */
INLINE struct vec_two vec_code_floats(const uint8_t *p, struct vec table)
{
    return (struct vec_two){vec_lookup(table, vec_low_codes(p)),
                            vec_lookup(table, vec_high_codes(p))};
}

#endif
#endif
