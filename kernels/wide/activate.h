/* SPDX-License-Identifier: Apache-2.0 */
/* activate on 16 lanes; formulas: ops_elementwise.h, the order of roundings: ref/activate.c.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ACTIVATE_H
#define QUIRE_KERNELS_WIDE_ACTIVATE_H
#include "kernels/tiling/grow.h"
#include "kernels/wide/columns.h"
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

/* e^(-s^2) t p(t) with t = 1 / (1 + 0.3 s), 0 <= s <= 20; p of degree 8 is a minimax fit of the
 * relative error, 0.33 * 2^-24 (Lawson's iteration on 4000 points), rounded to f32. s^2 is taken in
 * two parts, so that the relative error stays where the exponential is small. */
INLINE struct vec vec_erfc(struct vec s)
{
    const struct vec one = vec_set(1.0f), zero = vec_set(0);
    const struct vec t = vec_div(one, vec_fma(s, vec_set(0.3f), one));
    const struct vec high = vec_mul(s, s), low = vec_fma(s, s, vec_sub(zero, high));
    struct vec p = vec_set(-0x1.0954a8p-3f);
    p = vec_fma(p, t, vec_set(0x1.f1650ep-2f));
    p = vec_fma(p, t, vec_set(-0x1.067c9cp-1f));
    p = vec_fma(p, t, vec_set(0x1.18af52p-1f));
    p = vec_fma(p, t, vec_set(-0x1.853d52p-4f));
    p = vec_fma(p, t, vec_set(0x1.b88a52p-3f));
    p = vec_fma(p, t, vec_set(0x1.2fb0aap-3f));
    p = vec_fma(p, t, vec_set(0x1.5da474p-3f));
    p = vec_fma(p, t, vec_set(0x1.5a7eeep-3f));
    const struct vec e = vec_exp(vec_sub(zero, high));
    return vec_mul(vec_mul(p, t), vec_fnma(e, low, e));
}

/* max(z, 0) - |z|/2 erfc(|z| / sqrt 2); the tail above 30 is 0; -inf gives NaN, as in the
 * formula. */
INLINE struct vec vec_gelu(struct vec z)
{
    const struct vec s = vec_mul(vec_abs(z), vec_set(0x1.6a09e6p-1f));
    const struct vec size = vec_max(vec_sub(vec_set(0), z), vec_min(vec_set(30.0f), z));
    const struct vec half = vec_mul(size, vec_set(0.5f));
    const struct vec tail = vec_mul(half, vec_erfc(vec_min(vec_set(20.0f), s)));
    return vec_sub(vec_max(vec_set(0), z), tail);
}

INLINE struct vec vec_sigmoid_times(struct vec z, struct vec exponent)
{
    const struct vec e = vec_exp(vec_sub(vec_set(0), exponent));
    return vec_div(z, vec_add(vec_set(1.0f), e));
}

INLINE struct vec vec_act(enum kern_act is, struct vec z)
{
    const struct vec positive = vec_max(vec_set(0), z);
    switch (is) {
    case KERN_GELU:
        return vec_gelu(z);
    case KERN_GELU_TANH:
        return vec_sigmoid_times(z, vec_mul(z, vec_fma(vec_mul(z, z), vec_set(0x1.2444f2p-4f),
                                                       vec_set(0x1.988454p+0f))));
    case KERN_GELU_QUICK:
        return vec_sigmoid_times(z, vec_mul(vec_set(1.702f), z));
    case KERN_RELU:
        return positive;
    case KERN_RELU2:
        return vec_mul(positive, positive);
    case KERN_IDENTITY:
        return z;
    default:
        return vec_sigmoid_times(z, z);
    }
}

/* e^z - 1 - z for z at most 0: above -1/2 by its series, of which the first term left out is below
 * 2^-24 of the sum. */
INLINE struct vec vec_exp_rest(struct vec z)
{
    const struct vec tail = vec_sub(vec_sub(vec_exp(z), vec_set(1.0f)), z);
    struct vec p = vec_set(1.0f / 40320);
    p = vec_fma(p, z, vec_set(1.0f / 5040));
    p = vec_fma(p, z, vec_set(1.0f / 720));
    p = vec_fma(p, z, vec_set(1.0f / 120));
    p = vec_fma(p, z, vec_set(1.0f / 24));
    p = vec_fma(p, z, vec_set(1.0f / 6));
    p = vec_fma(p, z, vec_set(0.5f));
    return vec_if_above(z, vec_set(-0.5f), vec_mul(vec_mul(p, z), z), tail);
}

INLINE struct vec vec_xielu(struct xielu by, struct vec z)
{
    const struct vec zero = vec_set(0), positive = vec_set(by.positive);
    const struct vec above = vec_mul(vec_mul(positive, z), z);
    const struct vec below = vec_mul(vec_set(by.negative), vec_exp_rest(vec_min(zero, z)));
    return vec_fma(z, vec_set(KERN_XIELU_BETA), vec_if_above(z, zero, above, below));
}

INLINE struct vec vec_gated(const struct activate_args *a, enum kern_act act, struct vec gate,
                            struct vec up)
{
    const struct vec limit = vec_set(a->limit), low = vec_set(-a->limit);
    if (!(a->limit > 0))
        return vec_mul(vec_act(act, gate), up);
    const struct vec limited = vec_min(limit, vec_max(low, up));
    return vec_mul(vec_act(act, vec_min(limit, gate)), vec_add(limited, vec_set(1.0f)));
}

INLINE void wide_activate_chunk(const struct activate_args *a, enum kern_act act, struct chunk k)
{
    const struct xielu by = act == KERN_XIELU ? xielu_of(a) : (struct xielu){0, 0};
    const float *gate = a->x + k.row * a->x_stride, *up = gate + a->n_col;
    for (uint32_t c = k.begin; c < k.end; c += 16) {
        const uint32_t n = k.end - c < 16 ? k.end - c : 16;
        const struct vec z = vec_load_n(gate + c, n);
        const struct vec y = a->gated            ? vec_gated(a, act, z, vec_load_n(up + c, n))
                             : act == KERN_XIELU ? vec_xielu(by, z)
                                                 : vec_act(act, z);
        if (a->y_dtype == DT_F32)
            vec_store_n((float *)a->y + k.row * a->y_stride + c, y, n);
        else
            vec_store_bf16_n((uint16_t *)a->y + k.row * a->y_stride + c, y, n);
    }
}

/* One case per activation, so that the branch is outside the loop over columns. */
INLINE void wide_activate(const struct activate_args *a, const struct kern_exec *x)
{
    const struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        const struct chunk k = chunk_at(i, a->n_col);
        switch (a->act) {
        case KERN_GELU:
            wide_activate_chunk(a, KERN_GELU, k);
            break;
        case KERN_GELU_TANH:
            wide_activate_chunk(a, KERN_GELU_TANH, k);
            break;
        case KERN_XIELU:
            wide_activate_chunk(a, KERN_XIELU, k);
            break;
        default:
            wide_activate_chunk(a, a->act, k);
            break;
        }
    }
}

#endif
#endif
