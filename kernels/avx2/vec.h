/* SPDX-License-Identifier: Apache-2.0 */
/* vec - 16 f32 lanes in two AVX2 registers: the functions of avx512/vec.h, where their contract is, with the same bits
 * in every lane.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_H
#define QUIRE_KERNELS_VEC_H
#include <immintrin.h>
#include "kernels/split.h"
#include "kernels/unroll.h"

#define VEC_SUMS 6 /* vecs that may be live as accumulators: 12 of 16 registers */

struct vec {
    __m256 a, b; /* lanes 0 … 7, 8 … 15 */
};
struct vec_f64 {
    __m256d q[4];
};

/* Every function that treats the halves alike. */
#define EACH(r, call_a, call_b)      \
    struct vec r = {call_a, call_b}; \
    return r

INLINE struct vec vec_set(float f)
{
    EACH(r, _mm256_set1_ps(f), _mm256_set1_ps(f));
}
INLINE __m256i vec_mask(int n) /* lanes below n of one half */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE struct vec vec_load(const float *p)
{
    EACH(r, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
INLINE struct vec vec_load_n(const float *p, uint32_t n)
{
    EACH(r, _mm256_maskload_ps(p, vec_mask((int)n)),
         _mm256_maskload_ps(p + 8, vec_mask((int)n - 8)));
}
INLINE void vec_store(float *p, struct vec x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
INLINE void vec_store_n(float *p, struct vec x, uint32_t n)
{
    _mm256_maskstore_ps(p, vec_mask((int)n), x.a);
    _mm256_maskstore_ps(p + 8, vec_mask((int)n - 8), x.b);
}

INLINE struct vec vec_add(struct vec x, struct vec y)
{
    EACH(r, _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
INLINE struct vec vec_sub(struct vec x, struct vec y)
{
    EACH(r, _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
INLINE struct vec vec_mul(struct vec x, struct vec y)
{
    EACH(r, _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
INLINE struct vec vec_div(struct vec x, struct vec y)
{
    EACH(r, _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
INLINE struct vec vec_fma(struct vec x, struct vec y, struct vec z)
{
    EACH(r, _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
INLINE struct vec vec_fnma(struct vec x, struct vec y, struct vec z)
{
    EACH(r, _mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b));
}
INLINE struct vec vec_max(struct vec x, struct vec y)
{
    EACH(r, _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
INLINE struct vec vec_min(struct vec x, struct vec y)
{
    EACH(r, _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
INLINE struct vec vec_abs(struct vec x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    EACH(r, _mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}
INLINE struct vec vec_sign_of(struct vec x, struct vec y)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    EACH(r, _mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
         _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b)));
}
INLINE struct vec vec_round(struct vec x)
{
    EACH(r, _mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
         _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* In two steps, since 2^n may be out of range: |n| is at most 254, and for a near 1 the first product is exact. */
INLINE __m256 vec_scale_half(__m256 x, __m256 n)
{
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
    __m256i second = _mm256_sub_epi32(whole, first);
    __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, f), s);
}
INLINE struct vec vec_scale(struct vec x, struct vec n)
{
    EACH(r, vec_scale_half(x.a, n.a), vec_scale_half(x.b, n.b));
}

INLINE struct vec vec_first(uint32_t n, struct vec x, struct vec y)
{
    EACH(r, _mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(vec_mask((int)n))),
         _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(vec_mask((int)n - 8))));
}
INLINE struct vec vec_if_equal(struct vec x, struct vec y, struct vec yes, struct vec no)
{
    EACH(r, _mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)),
         _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)));
}
INLINE struct vec vec_if_nan(struct vec x, struct vec yes, struct vec no)
{
    EACH(r, _mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
         _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)));
}
INLINE uint32_t vec_equal_bits(struct vec x, struct vec y)
{
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ));
    uint32_t high = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
    return low | high << 8;
}

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
INLINE void vec_store_bf16_n(uint16_t *p, struct vec x, uint32_t n)
{
    /* packus interleaves the 128-bit halves of its operands; 0xd8 puts quarters 0, 2, 1, 3 in order */
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

INLINE float vec_fold_add(struct vec x)
{
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float vec_fold_max(struct vec x)
{
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

INLINE struct vec_f64 vec_f64_zero(void)
{
    const __m256d z = _mm256_setzero_pd();
    return (struct vec_f64){{z, z, z, z}};
}
INLINE struct vec_f64 vec_f64_add(struct vec_f64 s, struct vec x)
{
    s.q[0] = _mm256_add_pd(s.q[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)));
    s.q[1] = _mm256_add_pd(s.q[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)));
    s.q[2] = _mm256_add_pd(s.q[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)));
    s.q[3] = _mm256_add_pd(s.q[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)));
    return s;
}
INLINE double vec_f64_fold_add(struct vec_f64 s)
{
    __m256d h = _mm256_add_pd(_mm256_add_pd(s.q[0], s.q[2]), _mm256_add_pd(s.q[1], s.q[3]));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#endif
