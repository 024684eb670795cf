/* SPDX-License-Identifier: Apache-2.0 */
/* vec_transpose - transpose of 16 vecs as a square of 16 x 16 cells of 32 bits, and other bit
 * operations of packing. A cell is an f32, two halves or four bytes. Contract: beside each
 * function; avx2/vec_transpose.h does the same. Threads: pure functions. */
#ifndef QUIRE_KERNELS_VEC_TRANSPOSE_H
#define QUIRE_KERNELS_VEC_TRANSPOSE_H
#ifdef __AVX512BW__

/* In groups of four rows: 4 x 4 cells within each quarter of 128 bits. */
INLINE void vec_transpose_quarters(__m512 m[16])
{
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(m[i], m[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(m[i], m[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(m[i + 2], m[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(m[i + 2], m[i + 3]));
        m[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        m[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        m[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        m[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
}
/* Cell j of row i becomes cell i of row j. */
INLINE void vec_transpose(struct vec v[16])
{
    __m512 m[16];
    UNROLL
    for (int i = 0; i < 16; i++)
        m[i] = v[i].v;
    vec_transpose_quarters(m);
    /* m[4 r + c] holds, in quarter q, rows 4 r … 4 r + 3 of column 4 q + c: transpose the
     * quarters */
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(m[c], m[4 + c], 0x88); /* quarters 0, 2 of both */
        __m512 b = _mm512_shuffle_f32x4(m[c], m[4 + c], 0xdd); /* 1, 3 */
        __m512 d = _mm512_shuffle_f32x4(m[8 + c], m[12 + c], 0x88);
        __m512 f = _mm512_shuffle_f32x4(m[8 + c], m[12 + c], 0xdd);
        v[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
        v[8 + c].v = _mm512_shuffle_f32x4(a, d, 0xdd);
        v[4 + c].v = _mm512_shuffle_f32x4(b, f, 0x88);
        v[12 + c].v = _mm512_shuffle_f32x4(b, f, 0xdd);
    }
}
/* The low and the high 16 bits of every cell, 32 bytes each. */
INLINE void vec_store_halves(uint16_t *low, uint16_t *high, struct vec a)
{
    const __m512i u = _mm512_castps_si512(a.v);
    _mm256_storeu_si256((__m256i *)(void *)low, _mm512_cvtepi32_epi16(u));
    if (high)
        _mm256_storeu_si256((__m256i *)(void *)high,
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
INLINE void vec_store_these(float *p, struct vec a, uint32_t bits) /* cells whose bit is set */
{
    _mm512_mask_storeu_ps(p, (__mmask16)bits, a.v);
}
INLINE struct vec vec_flip(struct vec a, uint32_t bits) /* these bits of every cell */
{
    return vec_of(_mm512_xor_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi32((int)bits))));
}

#endif
#endif
