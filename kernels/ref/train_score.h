/* SPDX-License-Identifier: Apache-2.0 */
/* train_score - what the references of attention_train and attention_grad have in common: one row
 * of one head and its keys. Private to kernels/ref. Threads: pure functions.
 *
 * BF16: a sum takes its terms in pairs, of each the odd one first (1, 0, 3, 2, …; columns, keys and
 * rows are counted from the first of the head, of the segment); subnormal factors are zero, the
 * others are rounded to bf16; subnormal sums are zero. That is what vcvtneps2bf16 and vdpbf16ps do
 * (ref/linear.c). */
#ifndef QUIRE_KERNELS_REF_TRAIN_SCORE_H
#define QUIRE_KERNELS_REF_TRAIN_SCORE_H
#include <float.h>
#include <math.h>
#include "kernels/ops/ops_train.h"

struct train_row {
    const struct attention_train_args *a;
    struct train_segment segment;
    uint32_t i, head; /* row of the segment */
};

static inline float train_flushed(float f)
{
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

static inline float train_factor(float f)
{
    return bf16_to_f32(f32_to_bf16(train_flushed(f)));
}

/* sum + x y */
static inline float train_add(enum dtype compute, float x, float y, float sum)
{
    return compute == DT_BF16 ? train_flushed(fmaf(train_factor(x), train_factor(y), sum))
                              : fmaf(x, y, sum);
}

/* The i-th term of a sum of n; n or more: there is none. */
static inline size_t train_term(enum dtype compute, size_t i)
{
    return compute == DT_BF16 ? i ^ 1 : i;
}

/* Terms to ask train_term for. */
static inline size_t train_terms(enum dtype compute, size_t n)
{
    return compute == DT_BF16 ? (n + 1) / 2 * 2 : n;
}

static inline float train_dot(enum dtype compute, const float *x, const float *y, uint32_t n)
{
    float sum = 0;
    for (size_t i = 0; i < train_terms(compute, n); i++) {
        const size_t d = train_term(compute, i);
        if (d < n)
            sum = train_add(compute, x[d], y[d], sum);
    }
    return sum;
}

/* Element of an array of keys or values, rows kv_stride apart: that of key c of the row's group. */
static inline size_t train_key_at(const struct train_row *r, size_t kv_stride, size_t c)
{
    const size_t group = r->head / (r->a->n_head / r->a->n_kv_head);
    return (r->segment.row + c) * kv_stride + group * r->a->head_dim;
}

static inline const float *train_key(const struct train_row *r, size_t c)
{
    return r->a->k + train_key_at(r, r->a->kv_stride, c);
}

static inline const float *train_value(const struct train_row *r, size_t c)
{
    return r->a->v + train_key_at(r, r->a->kv_stride, c);
}

static inline const float *train_query(const struct train_row *r)
{
    return r->a->q + (r->segment.row + r->i) * r->a->q_stride + (size_t)r->head * r->a->head_dim;
}

/* The first key that is visible to the row. */
static inline size_t train_first_key(const struct train_row *r)
{
    return r->a->window && r->i + 1 > r->a->window ? r->i + 1 - r->a->window : 0;
}

/* s[c], after scale, slope and soft cap. */
static inline float train_score(const struct train_row *r, size_t c)
{
    float s =
        train_dot(r->a->compute, train_query(r), train_key(r, c), r->a->head_dim) * r->a->scale;
    if (r->a->slopes)
        s = fmaf(-r->a->slopes[r->head], (float)(r->i - c), s);
    return r->a->soft_cap > 0 ? r->a->soft_cap * tanhf(s / r->a->soft_cap) : s;
}

#endif
