/* SPDX-License-Identifier: Apache-2.0 */
/* distill_terms - the terms of distill_loss on 16 lanes; formulas: ref/distill_loss.c.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_DISTILL_TERMS_H
#define QUIRE_KERNELS_WIDE_DISTILL_TERMS_H
#include "kernels/tiling/distill_pair.h"
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

INLINE struct vec distill_load(const float *p, uint32_t n)
{
    return n == 16 ? vec_load(p) : vec_load_n(p, n);
}
INLINE void distill_store(float *p, struct vec v, uint32_t n)
{
    if (n == 16)
        vec_store(p, v);
    else
        vec_store_n(p, v, n);
}
INLINE uint32_t distill_lanes(uint32_t c, uint32_t n)
{
    return n - c < 16 ? n - c : 16;
}
/* f64 lanes + the first n of v. */
INLINE struct vec_f64 distill_add(struct vec_f64 sum, struct vec v, uint32_t n)
{
    return vec_f64_add(sum, n == 16 ? v : vec_first(n, v, vec_set(0)));
}
INLINE struct vec distill_product(struct vec weight, struct vec term)
{
    return vec_if_equal(weight, vec_set(0), vec_set(0), vec_mul(weight, term));
}
INLINE struct vec distill_exponent(struct vec z, float most, float inverse)
{
    return vec_mul(vec_sub(z, vec_set(most)), vec_set(inverse));
}

INLINE struct vec vec_log_1p(struct vec u)
{
    const struct vec s = vec_div(u, vec_add(vec_set(2.0f), u)), s2 = vec_mul(s, s);
    struct vec p = vec_set(1.0f / 15);
    p = vec_fma(p, s2, vec_set(1.0f / 13));
    p = vec_fma(p, s2, vec_set(1.0f / 11));
    p = vec_fma(p, s2, vec_set(1.0f / 9));
    p = vec_fma(p, s2, vec_set(1.0f / 7));
    p = vec_fma(p, s2, vec_set(1.0f / 5));
    p = vec_fma(p, s2, vec_set(1.0f / 3));
    p = vec_fma(p, s2, vec_set(1.0f));
    return vec_mul(vec_add(s, s), p);
}

INLINE struct vec distill_log_ratio(const struct distill_pair *p, struct vec d)
{
    const struct vec zero = vec_set(0), h = vec_add(d, vec_set(p->logit));
    const struct vec t = vec_log_1p(vec_exp(vec_sub(zero, vec_abs(h))));
    const struct vec above = vec_sub(vec_sub(vec_set(-p->log_beta), d), t);
    return vec_if_above(h, zero, above, vec_sub(vec_set(-p->log_rest), t));
}

#endif
#endif
