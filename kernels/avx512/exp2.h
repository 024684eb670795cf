/* SPDX-License-Identifier: Apache-2.0 */
/* exp2 - 2^x for 16 lanes with the accuracy that weights of attention need: relative error 2.9e-6
 * (2^-18.4); the weights are rounded to bf16. x = n + r, |r| <= 1/2; 2^r = 1 + r p(r), the minimax
 * fit of the relative error (Lawson's iteration on 4000 points), rounded to f32. NaN stays NaN; x
 * below -200 is replaced by -200. Threads: pure functions. */
#ifndef QUIRE_KERNELS_EXP2_H
#define QUIRE_KERNELS_EXP2_H
#include "kernels/avx512/vec.h"
#ifdef __AVX512BW__

INLINE __m512 exp2_rough(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* a NaN is the second operand: it stays */
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.3a02ccp-7f), r, _mm512_set1_ps(0x1.c9fc46p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ec0378p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e12cp-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f)), n);
}

#endif
#endif
