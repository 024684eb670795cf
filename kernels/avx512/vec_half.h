/* SPDX-License-Identifier: Apache-2.0 */
/* vec_half - half-precision elements to and from the lanes of vec.h, and elements that alternate in
 * memory. Contract: beside each function; avx2/vec_half.h does the same.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_HALF_H
#define QUIRE_KERNELS_VEC_HALF_H
#ifdef __AVX512BW__

INLINE struct vec vec_load_f16(const uint16_t *p)
{
    return vec_of(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)));
}
INLINE __m512 vec_widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE struct vec vec_load_bf16(const uint16_t *p)
{
    return vec_of(vec_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p)));
}
INLINE struct vec vec_load_bf16_n(const uint16_t *p, uint32_t n)
{
    return vec_of(vec_widen_bf16(_mm256_maskz_loadu_epi16(vec_mask(n), p)));
}
/* 16 pairs of bf16 in 64 bytes: their first elements, their second elements. */
INLINE struct vec vec_load_even(const uint16_t *pairs)
{
    return vec_of(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16)));
}
INLINE struct vec vec_load_odd(const uint16_t *pairs)
{
    return vec_of(_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32((int)0xffff0000))));
}
INLINE __m512i vec_round_bf16(__m512 x) /* in the low half of each lane; as f32_to_bf16 */
{
    const __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(_mm512_srli_epi32(r, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                high, _mm512_set1_epi32(0x40));
}
INLINE void vec_store_bf16_n(uint16_t *p, struct vec a, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, vec_mask(n), _mm512_cvtepi32_epi16(vec_round_bf16(a.v)));
}
/* Cells of two bf16, of a in the low half, of b in the high one; and the halves of cells as f32. */
INLINE struct vec vec_bf16_pairs(struct vec a, struct vec b)
{
    const __m512i high = _mm512_slli_epi32(vec_round_bf16(b.v), 16);
    return vec_of(_mm512_castsi512_ps(_mm512_or_si512(vec_round_bf16(a.v), high)));
}
INLINE struct vec vec_even_halves(struct vec a)
{
    return vec_of(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16)));
}
INLINE struct vec vec_odd_halves(struct vec a)
{
    return vec_of(_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32((int)0xffff0000))));
}

INLINE void vec_store_f16(uint16_t *p, struct vec a) /* to nearest even; NaN stays NaN */
{
    __m256i h = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}

/* p[0], p[2], … and p[1], p[3], … of 32 floats, and back. */
INLINE void vec_load_pairs(const float *p, struct vec *even, struct vec *odd)
{
    const __m512i at = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    even->v = _mm512_permutex2var_ps(a, at, b);
    odd->v = _mm512_permutex2var_ps(a, _mm512_or_si512(at, _mm512_set1_epi32(1)), b);
}
INLINE void vec_store_pairs(float *p, struct vec even, struct vec odd)
{
    const __m512i at = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, at, odd.v));
    _mm512_storeu_ps(
        p + 16, _mm512_permutex2var_ps(even.v, _mm512_add_epi32(at, _mm512_set1_epi32(8)), odd.v));
}

#endif
#endif
