/* SPDX-License-Identifier: Apache-2.0 */
/* int8 - a vector's scale and its stored values, 16 at a time; the same numbers as ref/int8.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_INT8_H
#define QUIRE_KERNELS_WIDE_INT8_H
#include "kernels/int8.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* A sum of 0 * x is NaN when one x is not finite. */
INLINE struct int8_scale wide_int8_scale(const float *x, uint32_t dim)
{
    const struct vec zero = vec_set(0);
    struct vec most = zero, zeros = zero;
    for (uint32_t d = 0; d < dim; d += 16) {
        struct vec v = vec_load_n(x + d, dim - d < 16 ? dim - d : 16);
        most = vec_max(vec_abs(v), most);
        zeros = vec_fma(v, zero, zeros);
    }
    return int8_scale(vec_fold_add(zeros) == 0 ? vec_fold_max(most) : NAN);
}

INLINE struct vec wide_int8_round(struct vec v, float inverse)
{
    struct vec y = vec_round(vec_mul(v, vec_set(inverse)));
    return vec_if_nan(y, vec_set(0), y);
}

INLINE void wide_int8(int8_t *to, const float *x, float inverse, uint32_t n)
{
    vec_store_i8_n(to, wide_int8_round(vec_load_n(x, n), inverse), n);
}

#endif
#endif
