/* SPDX-License-Identifier: Apache-2.0 */
/* vec_transpose - 16 vecs as a square of 16 x 16 cells of 32 bits. Contract:
 * avx512/vec_transpose.h. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_TRANSPOSE_H
#define QUIRE_KERNELS_VEC_TRANSPOSE_H
#ifdef __AVX2__

/* 8 x 8 cells. */
INLINE void vec_transpose_eight(__m256 m[8])
{
    UNROLL
    for (int i = 0; i < 8; i += 4) { /* 4 x 4 cells within each half */
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(m[i], m[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(m[i], m[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(m[i + 2], m[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(m[i + 2], m[i + 3]));
        m[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        m[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        m[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        m[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    UNROLL
    for (int c = 0; c < 4; c++) { /* then the halves */
        __m256 low = _mm256_permute2f128_ps(m[c], m[4 + c], 0x20);
        m[4 + c] = _mm256_permute2f128_ps(m[c], m[4 + c], 0x31);
        m[c] = low;
    }
}
INLINE void vec_transpose(struct vec v[16])
{
    __m256 m[4][8]; /* left and right of rows 0 … 7, then of rows 8 … 15 */
    for (int i = 0; i < 16; i++) {
        m[i / 8 * 2][i % 8] = v[i].a;
        m[i / 8 * 2 + 1][i % 8] = v[i].b;
    }
    for (int i = 0; i < 4; i++)
        vec_transpose_eight(m[i]);
    for (int i = 0; i < 8; i++) {
        v[i] = (struct vec){m[0][i], m[2][i]};
        v[8 + i] = (struct vec){m[1][i], m[3][i]};
    }
}
INLINE void vec_store_pack16(uint16_t *p, __m256i a, __m256i b)
{
    /* packus interleaves the 128-bit halves of its operands; 0xd8 puts quarters 0, 2, 1, 3 in
     * order */
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, both);
}
INLINE void vec_store_halves(uint16_t *low, uint16_t *high, struct vec x)
{
    const __m256i a = _mm256_castps_si256(x.a), b = _mm256_castps_si256(x.b);
    const __m256i mask = _mm256_set1_epi32(0xffff);
    vec_store_pack16(low, _mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    if (high)
        vec_store_pack16(high, _mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
}
INLINE void vec_store_these(float *p, struct vec x, uint32_t bits)
{
    float whole[16];
    vec_store(whole, x);
    for (uint32_t i = 0; i < 16; i++)
        if (bits >> i & 1)
            p[i] = whole[i];
}
INLINE struct vec vec_flip(struct vec x, uint32_t bits)
{
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32((int)bits));
    EACH(r, _mm256_xor_ps(x.a, m), _mm256_xor_ps(x.b, m));
}

#endif
#endif
