/* SPDX-License-Identifier: Apache-2.0 */
/* vec - 16 f32 lanes in two AVX2 registers: the functions of avx512/vec.h, which has their
 * contracts, with the same bits in every lane. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_H
#define QUIRE_KERNELS_VEC_H
#include <immintrin.h>
#include "kernels/tiling/split.h"
#include "kernels/tiling/unroll.h"
#ifdef __AVX2__

#define VEC_SUMS 6 /* vecs that may be live as accumulators: 12 of 16 registers */

struct vec {
    __m256 a, b; /* lanes 0 … 7, 8 … 15 */
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
INLINE __m256 vec_gather_half(const float *p, const uint32_t *at, __m256i mask)
{
    const __m256i i = _mm256_maskload_epi32((const int *)(const void *)at, mask);
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, i, _mm256_castsi256_ps(mask), 4);
}
INLINE struct vec vec_gather_n(const float *p, const uint32_t *at, uint32_t n)
{
    EACH(r, vec_gather_half(p, at, vec_mask((int)n)),
         vec_gather_half(p, at + 8, vec_mask((int)n - 8)));
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
INLINE struct vec vec_sqrt(struct vec x)
{
    EACH(r, _mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b));
}
INLINE struct vec vec_fma(struct vec x, struct vec y, struct vec z)
{
    EACH(r, _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
/* The instruction is written out because gcc otherwise puts sums into the registers of other
 * operands, and spills some of twelve. */
INLINE void vec_add_product(struct vec *sum, struct vec x, struct vec y)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum->a) : "x"(x.a), "x"(y.a));
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum->b) : "x"(x.b), "x"(y.b));
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
/* In two steps, since 2^n may be out of range: |n| is at most 254, and for a near 1 the first
 * product is exact. */
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
INLINE uint32_t vec_bits(__m256 a, __m256 b)
{
    return (uint32_t)_mm256_movemask_ps(a) | (uint32_t)_mm256_movemask_ps(b) << 8;
}
INLINE uint32_t vec_equal_bits(struct vec x, struct vec y)
{
    return vec_bits(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
}

INLINE struct vec vec_if_above(struct vec x, struct vec y, struct vec yes, struct vec no)
{
    EACH(r, _mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
         _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)));
}
INLINE uint32_t vec_above_bits(struct vec x, struct vec y)
{
    return vec_bits(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
}
INLINE float vec_fold_add(struct vec x)
{
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float vec_first_lane(struct vec x)
{
    return _mm256_cvtss_f32(x.a);
}
INLINE float vec_fold_max(struct vec x)
{
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#endif
#endif
