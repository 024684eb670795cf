/* SPDX-License-Identifier: Apache-2.0 */
/* train_score - what the references of attention_train and attention_grad have in common: one row
 * of one head and its keys. Private to kernels/ref. Threads: pure functions. */
#ifndef QUIRE_KERNELS_REF_TRAIN_SCORE_H
#define QUIRE_KERNELS_REF_TRAIN_SCORE_H
#include <math.h>
#include "kernels/ops/ops_train.h"

struct train_row {
    const struct attention_train_args *a;
    struct train_segment segment;
    uint32_t i, head; /* row of the segment */
};

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

/* s[c], after scale and soft cap. */
static inline float train_score(const struct train_row *r, size_t c)
{
    const float *q = train_query(r), *k = train_key(r, c);
    float s = 0;
    for (uint32_t d = 0; d < r->a->head_dim; d++)
        s = fmaf(q[d], k[d], s);
    s *= r->a->scale;
    return r->a->soft_cap > 0 ? r->a->soft_cap * tanhf(s / r->a->soft_cap) : s;
}

#endif
