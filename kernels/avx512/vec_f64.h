/* SPDX-License-Identifier: Apache-2.0 */
/* vec_f64 - 16 f64 lanes, to sum the lanes of vec.h in. Contract: beside each function;
 * avx2/vec_f64.h does the same. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_F64_H
#define QUIRE_KERNELS_VEC_F64_H
#ifdef __AVX512BW__

struct vec_f64 { /* the same lanes, wider */
    __m512d low, high;
};

INLINE struct vec_f64 vec_f64_zero(void)
{
    return (struct vec_f64){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
INLINE struct vec_f64 vec_f64_add(struct vec_f64 s, struct vec a)
{
    s.low = _mm512_add_pd(s.low, _mm512_cvtps_pd(_mm512_castps512_ps256(a.v)));
    s.high = _mm512_add_pd(s.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1)));
    return s;
}
INLINE struct vec_f64 vec_f64_add_squares(struct vec_f64 s, struct vec a) /* exact squares */
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1));
    s.low = _mm512_fmadd_pd(low, low, s.low);
    s.high = _mm512_fmadd_pd(high, high, s.high);
    return s;
}
INLINE void vec_f64_store(double *p, struct vec_f64 s)
{
    _mm512_storeu_pd(p, s.low);
    _mm512_storeu_pd(p + 8, s.high);
}
INLINE double vec_f64_fold_add(struct vec_f64 s)
{
    __m512d o = _mm512_add_pd(s.low, s.high);
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(o), _mm512_extractf64x4_pd(o, 1));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#endif
#endif
