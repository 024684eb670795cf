/* SPDX-License-Identifier: Apache-2.0 */
/* vec_f64 - 16 f64 lanes, to sum the lanes of vec.h in. Contract: avx512/vec_f64.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_F64_H
#define QUIRE_KERNELS_VEC_F64_H
#ifdef __AVX2__

struct vec_f64 { /* the lanes of vec, wider */
    __m256d q[4];
};

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
INLINE __m256d vec_f64_square(__m256d sum, __m128 x)
{
    const __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, sum);
}
INLINE struct vec_f64 vec_f64_add_squares(struct vec_f64 s, struct vec x)
{
    s.q[0] = vec_f64_square(s.q[0], _mm256_castps256_ps128(x.a));
    s.q[1] = vec_f64_square(s.q[1], _mm256_extractf128_ps(x.a, 1));
    s.q[2] = vec_f64_square(s.q[2], _mm256_castps256_ps128(x.b));
    s.q[3] = vec_f64_square(s.q[3], _mm256_extractf128_ps(x.b, 1));
    return s;
}
INLINE void vec_f64_store(double *p, struct vec_f64 s)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(p + 4 * i, s.q[i]);
}
INLINE double vec_f64_fold_add(struct vec_f64 s)
{
    __m256d h = _mm256_add_pd(_mm256_add_pd(s.q[0], s.q[2]), _mm256_add_pd(s.q[1], s.q[3]));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#endif
#endif
