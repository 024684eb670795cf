/* SPDX-License-Identifier: Apache-2.0 */
/* activate_grad on 16 lanes; formulas and roundings: ref/activate_grad.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ACTIVATE_GRAD_H
#define QUIRE_KERNELS_WIDE_ACTIVATE_GRAD_H
#include "kernels/wide/activate.h"
#ifdef VEC_SUMS

struct act_value { /* act(z), act'(z) */
    struct vec act, slope;
};

INLINE struct act_value act_of_sigmoid(struct vec z, struct vec exponent, struct vec slope)
{
    const struct vec one = vec_set(1.0f);
    const struct vec e = vec_exp(vec_sub(vec_set(0), exponent));
    const struct vec s = vec_div(one, vec_add(one, e));
    const struct vec rest = vec_mul(z, vec_sub(one, s));
    return (struct act_value){vec_mul(z, s), vec_mul(s, vec_fma(rest, slope, one))};
}

/* Phi(z) = erfc(|z| / sqrt 2) / 2 for z below 0, 1 - that above; beyond |z| = 20 sqrt 2 it is 0 or
 * 1, and so is the density. */
INLINE struct act_value act_of_gelu(struct vec z)
{
    const struct vec s = vec_mul(vec_abs(z), vec_set(0x1.6a09e6p-1f));
    const struct vec tail = vec_mul(vec_set(0.5f), vec_erfc(vec_min(vec_set(20.0f), s)));
    const struct vec phi = vec_if_above(z, vec_set(0), vec_sub(vec_set(1.0f), tail), tail);
    const struct vec e = vec_exp(vec_mul(vec_set(-0.5f), vec_mul(z, z)));
    const struct vec density = vec_mul(e, vec_set(0x1.988454p-2f)); /* 1 / sqrt(2 pi) */
    return (struct act_value){vec_mul(z, phi), vec_fma(z, density, phi)};
}

INLINE struct act_value act_value_of(enum kern_act act, struct vec z)
{
    const struct vec zero = vec_set(0), k1 = vec_set(0x1.988454p+0f);
    const struct vec positive = vec_max(zero, z), z2 = vec_mul(z, z);
    switch (act) {
    case KERN_GELU:
        return act_of_gelu(z);
    case KERN_GELU_TANH:
        return act_of_sigmoid(z, vec_mul(z, vec_fma(z2, vec_set(0x1.2444f2p-4f), k1)),
                              vec_fma(z2, vec_set(0x1.b6676cp-3f), k1));
    case KERN_GELU_QUICK:
        return act_of_sigmoid(z, vec_mul(vec_set(1.702f), z), vec_set(1.702f));
    case KERN_RELU:
        return (struct act_value){positive, vec_if_above(z, zero, vec_set(1.0f), zero)};
    case KERN_RELU2:
        return (struct act_value){vec_mul(positive, positive), vec_add(positive, positive)};
    case KERN_IDENTITY:
        return (struct act_value){z, vec_set(1.0f)};
    default:
        return act_of_sigmoid(z, z, vec_set(1.0f));
    }
}

INLINE void activate_grad_chunk(const struct activate_grad_args *a, enum kern_act act,
                                struct chunk k)
{
    const float *x = a->x + k.row * a->x_stride, *dy = a->dy + k.row * a->dy_stride;
    float *dx = a->dx + k.row * a->dx_stride;
    for (uint32_t c = k.begin; c < k.end; c += 16) {
        const uint32_t n = k.end - c < 16 ? k.end - c : 16;
        const struct act_value v = act_value_of(act, vec_load_n(x + c, n));
        const struct vec d = vec_load_n(dy + c, n);
        struct vec by = d;
        if (a->gated) {
            by = vec_mul(d, vec_load_n(x + a->n_col + c, n));
            vec_store_n(dx + a->n_col + c, vec_mul(d, v.act), n);
        }
        vec_store_n(dx + c, vec_mul(by, v.slope), n);
    }
}

/* A case each, so that no lane asks which it is. */
INLINE void wide_activate_grad(const struct activate_grad_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        switch (a->act) {
        case KERN_SILU:
            activate_grad_chunk(a, KERN_SILU, k);
            break;
        case KERN_GELU:
            activate_grad_chunk(a, KERN_GELU, k);
            break;
        case KERN_GELU_TANH:
            activate_grad_chunk(a, KERN_GELU_TANH, k);
            break;
        default:
            activate_grad_chunk(a, a->act, k);
            break;
        }
    }
}

#endif
#endif
