/* SPDX-License-Identifier: Apache-2.0 */
/* int8 - a vector's scale and its stored values, 16 at a time; the same numbers as ref/int8.h.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_INT8_H
#define QUIRE_KERNELS_WIDE_INT8_H
#include "kernels/ops/int8.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

struct int8_range { /* of some values: largest magnitude; 0, or NaN when one is not finite */
    struct vec most, zeros;
};

INLINE void wide_int8_see(struct int8_range *r, struct vec v)
{
    r->most = vec_max(vec_abs(v), r->most);
    r->zeros = vec_fma(v, vec_set(0), r->zeros);
}

/* Two chains of maxima: the order of a maximum changes no bit. */
INLINE struct int8_scale wide_int8_scale(const float *x, uint32_t dim)
{
    struct int8_range a = {vec_set(0), vec_set(0)}, b = a;
    uint32_t d = 0;
    for (; d + 32 <= dim; d += 32) {
        wide_int8_see(&a, vec_load(x + d));
        wide_int8_see(&b, vec_load(x + d + 16));
    }
    for (; d < dim; d += 16)
        wide_int8_see(&a, vec_load_n(x + d, dim - d < 16 ? dim - d : 16));
    const float zero = vec_fold_add(vec_add(a.zeros, b.zeros));
    return int8_scale(zero == 0 ? vec_fold_max(vec_max(a.most, b.most)) : NAN);
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
