/* SPDX-License-Identifier: Apache-2.0 */
/* exp - e^x and tanh for 16 lanes.
 *
 * x = n ln 2 + r with n an integer and |r| <= ln(2)/2; e^r = 1 + r + r^2 q(r), q of degree 4.
 * The coefficients are a minimax fit of the relative error, 0.05 * 2^-24 (Lawson's iteration on
 * 4000 points), rounded to f32. Over every third f32 whose e^x is normal the worst vec_exp is 1.01
 * ulp off; subnormal results are rounded once; overflow is +inf, e^-inf 0, NaN stays NaN.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_EXP_H
#define QUIRE_KERNELS_WIDE_EXP_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE struct vec vec_exp(struct vec x)
{
    /* e^-104 is below half the least subnormal, e^89 above FLT_MAX; NaN passes as the second
     * operand */
    x = vec_max(vec_set(-104.0f), vec_min(vec_set(89.0f), x));
    struct vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f))); /* 1 / ln 2 */
    struct vec r =
        vec_fnma(n, vec_set(0x1.62e43p-1f), x); /* ln 2 in two parts; exact for |x| >= 1 */
    r = vec_fnma(n, vec_set(-0x1.05c61p-29f), r);
    struct vec q = vec_set(0x1.6a23dp-10f);
    q = vec_fma(q, r, vec_set(0x1.123a2p-7f));
    q = vec_fma(q, r, vec_set(0x1.5558f2p-5f));
    q = vec_fma(q, r, vec_set(0x1.555492p-3f));
    q = vec_fma(q, r, vec_set(0x1.fffffcp-2f));
    struct vec p = vec_add(vec_fma(q, vec_mul(r, r), r), vec_set(1.0f));
    return vec_scale(p, n);
}

/* 1 - 2 / (e^2|x| + 1) with the sign of x: absolute error 2^-23, sufficient for a soft cap. */
INLINE struct vec vec_tanh(struct vec x)
{
    struct vec one = vec_set(1.0f), two = vec_set(2.0f);
    struct vec e = vec_exp(vec_mul(two, vec_abs(x)));
    return vec_sign_of(vec_sub(one, vec_div(two, vec_add(e, one))), x);
}

#endif
#endif
