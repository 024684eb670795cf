/* SPDX-License-Identifier: Apache-2.0 */
/* vec - 16 f32 lanes in one AVX-512 register. avx2/vec.h has the same functions on two
 * registers, lane for lane the same bits; kernels/wide/ is written once on top of them.
 * Functions that end in _n touch the first n (0 … 16) elements of memory only; the other lanes
 * of a load are 0. Pointers need no alignment. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_H
#define QUIRE_KERNELS_VEC_H
#include <immintrin.h>
#include "kernels/tiling/split.h"
#include "kernels/tiling/unroll.h"
#ifdef __AVX512BW__

#define VEC_SUMS 24 /* vecs that may be live as accumulators; 8 registers stay for operands */

struct vec {
    __m512 v;
};

INLINE struct vec vec_of(__m512 v)
{
    return (struct vec){v};
}
INLINE struct vec vec_set(float f)
{
    return vec_of(_mm512_set1_ps(f));
}
INLINE __mmask16 vec_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
INLINE struct vec vec_load(const float *p)
{
    return vec_of(_mm512_loadu_ps(p));
}
INLINE struct vec vec_load_n(const float *p, uint32_t n)
{
    return vec_of(_mm512_maskz_loadu_ps(vec_mask(n), p));
}
INLINE struct vec vec_gather_n(const float *p, const uint32_t *at, uint32_t n) /* p[at[l]] */
{
    const __m512i i = _mm512_maskz_loadu_epi32(vec_mask(n), at);
    return vec_of(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), vec_mask(n), i, p, 4));
}
INLINE void vec_store(float *p, struct vec a)
{
    _mm512_storeu_ps(p, a.v);
}
INLINE void vec_store_n(float *p, struct vec a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, vec_mask(n), a.v);
}

INLINE struct vec vec_add(struct vec a, struct vec b)
{
    return vec_of(_mm512_add_ps(a.v, b.v));
}
INLINE struct vec vec_sub(struct vec a, struct vec b)
{
    return vec_of(_mm512_sub_ps(a.v, b.v));
}
INLINE struct vec vec_mul(struct vec a, struct vec b)
{
    return vec_of(_mm512_mul_ps(a.v, b.v));
}
INLINE struct vec vec_div(struct vec a, struct vec b)
{
    return vec_of(_mm512_div_ps(a.v, b.v));
}
INLINE struct vec vec_sqrt(struct vec a)
{
    return vec_of(_mm512_sqrt_ps(a.v));
}
INLINE struct vec vec_fma(struct vec a, struct vec b, struct vec c) /* a * b + c */
{
    return vec_of(_mm512_fmadd_ps(a.v, b.v, c.v));
}
INLINE void vec_add_product(struct vec *sum, struct vec a, struct vec b) /* += a * b, fused */
{
    *sum = vec_fma(a, b, *sum);
}
INLINE struct vec vec_fnma(struct vec a, struct vec b, struct vec c) /* c - a * b */
{
    return vec_of(_mm512_fnmadd_ps(a.v, b.v, c.v));
}
INLINE struct vec vec_max(struct vec a, struct vec b) /* b where either is NaN */
{
    return vec_of(_mm512_max_ps(a.v, b.v));
}
INLINE struct vec vec_min(struct vec a, struct vec b) /* b where either is NaN */
{
    return vec_of(_mm512_min_ps(a.v, b.v));
}
INLINE struct vec vec_abs(struct vec a)
{
    return vec_of(_mm512_abs_ps(a.v));
}
INLINE struct vec vec_sign_of(struct vec a, struct vec b) /* |a| with the sign of b */
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000);
    /* 0xd8: the bit of b where sign has one, of a elsewhere */
    return vec_of(_mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v), sign, 0xd8)));
}
INLINE struct vec vec_round(struct vec a) /* to the nearest integer, ties to even */
{
    return vec_of(_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE struct vec vec_scale(struct vec a, struct vec n) /* a * 2^n, n an integer, rounded once */
{
    return vec_of(_mm512_scalef_ps(a.v, n.v));
}

INLINE struct vec vec_first(uint32_t n, struct vec a,
                            struct vec b) /* the first n lanes of a, the rest of b */
{
    return vec_of(_mm512_mask_blend_ps(vec_mask(n), b.v, a.v));
}
INLINE struct vec vec_if_equal(struct vec x, struct vec y, struct vec a,
                               struct vec b) /* x == y ? a : b */
{
    return vec_of(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ), b.v, a.v));
}
INLINE struct vec vec_if_nan(struct vec x, struct vec a, struct vec b) /* isnan(x) ? a : b */
{
    return vec_of(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), b.v, a.v));
}
INLINE uint32_t vec_equal_bits(struct vec x, struct vec y) /* bit l is set where lane l is equal */
{
    return _mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ);
}

INLINE struct vec vec_if_above(struct vec x, struct vec y, struct vec a,
                               struct vec b) /* x > y ? a : b */
{
    return vec_of(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), b.v, a.v));
}
INLINE uint32_t vec_above_bits(struct vec x, struct vec y) /* bit l is set where x > y */
{
    return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ);
}

/* Lane l takes lane l + 8, then + 4, + 2, + 1. */
INLINE float vec_fold_add(struct vec a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float vec_first_lane(struct vec a)
{
    return _mm512_cvtss_f32(a.v);
}
INLINE float vec_fold_max(struct vec a) /* no lane is NaN */
{
    return _mm512_reduce_max_ps(a.v);
}

#endif
#endif
