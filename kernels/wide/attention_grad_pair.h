/* SPDX-License-Identifier: Apache-2.0 */
/* attention_grad_pair - a tile of queries with a tile of keys: the five products of attention_grad.
 * See wide/attention_grad.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_GRAD_PAIR_H
#define QUIRE_KERNELS_WIDE_ATTENTION_GRAD_PAIR_H
#include "kernels/wide/train_tile.h"
#ifdef VEC_SUMS

struct grad_item {
    const struct attention_grad_args *a;
    struct train_segment segment;
    struct range heads, queries, keys; /* heads of q; tiles */
    uint32_t kv_head;
    bool to_q, to_kv;
    float *q, *dout, *dq, *k, *k_t, *v_t, *dk, *dv, *p, *ds; /* scratch */
};

struct grad_pair {
    uint32_t head, i, j, n; /* n: rows of tile i */
    size_t row;             /* the first of them, of the batch */
};

INLINE float *grad_at(const float *p, size_t row, size_t stride, size_t column)
{
    return (float *)(uintptr_t)p + row * stride + column;
}

INLINE float grad_delta(const struct grad_item *t, const struct grad_pair *g, uint32_t r)
{
    const struct attention_train_args *a = &t->a->of;
    const float *out = a->out + (g->row + r) * a->out_stride + (size_t)g->head * a->head_dim;
    const uint32_t dim = train_dim(a->head_dim);
    struct vec sum = vec_set(0);
    for (uint32_t d = 0; d < dim; d += 16)
        sum = vec_fma(vec_load(t->dout + (size_t)r * dim + d),
                      vec_load_n(out + d, train_lanes(d, a->head_dim)), sum);
    return vec_fold_add(sum);
}

/* Row r: q·k in t->p and dout·v in t->ds to p and ds. */
INLINE void grad_row(const struct grad_item *t, const struct grad_pair *g, uint32_t r)
{
    const struct attention_train_args *a = &t->a->of;
    const struct range visible = train_visible(a, g->i, r, g->j);
    const struct vec zero = vec_set(0), delta = vec_set(grad_delta(t, g, r));
    const struct vec lse = vec_set(a->lse[(g->row + r) * a->n_head + g->head]);
    float *p = t->p + (size_t)r * KERN_TRAIN_TILE, *ds = t->ds + (size_t)r * KERN_TRAIN_TILE;
    UNROLL
    for (int l = 0; l < (int)TRAIN_VECS; l++) {
        const struct vec s = train_scaled(a, vec_load(p + 16 * l));
        const struct vec e = train_only(vec_exp(vec_sub(s, lse)), zero, l, visible);
        struct vec d = vec_mul(e, vec_sub(vec_load(ds + 16 * l), delta));
        if (a->soft_cap > 0) {
            const struct vec t1 = vec_div(s, vec_set(a->soft_cap));
            d = vec_mul(d, vec_sub(vec_set(1.0f), vec_mul(t1, t1)));
        }
        d = vec_mul(d, vec_set(a->scale));
        vec_store(p + 16 * l, e);
        vec_store(ds + 16 * l, train_only(d, zero, l, visible));
    }
}

/* c [keys][dim] += (scores [n][keys])ᵀ times rows [n][dim]. */
INLINE void grad_by_keys(float *c, const float *scores, const float *rows, uint32_t dim, uint32_t n,
                         bool add)
{
    tile_product(&(struct tile_product){
        .c = c,
        .a = scores,
        .b = rows,
        .c_stride = dim,
        .a_row = 1,
        .a_k = KERN_TRAIN_TILE,
        .b_stride = dim,
        .n_row = KERN_TRAIN_TILE,
        .n_col = dim,
        .n_k = n,
        .add = add,
    });
}

INLINE void grad_to_q(const struct grad_item *t, const struct grad_pair *g)
{
    const struct attention_train_args *a = &t->a->of;
    const uint32_t dim = train_dim(a->head_dim);
    const size_t stride = t->a->dq_stride;
    float *dq = grad_at(t->a->dq, g->row, stride, (size_t)g->head * a->head_dim);
    const struct train_rows rows = {dq, stride, g->n, a->head_dim};
    const bool add = g->j > train_first(a, g->i);
    if (add)
        train_copy(t->dq, &rows);
    tile_product(&(struct tile_product){
        .c = t->dq,
        .a = t->ds,
        .b = t->k,
        .c_stride = dim,
        .a_row = KERN_TRAIN_TILE,
        .a_k = 1,
        .b_stride = dim,
        .n_row = train_blocks(g->n),
        .n_col = dim,
        .n_k = train_rows(&t->segment, g->j),
        .add = add,
    });
    train_write(dq, stride, t->dq, &rows, NULL);
}

INLINE void grad_pair(const struct grad_item *t, const struct grad_pair *g)
{
    const struct attention_train_args *a = &t->a->of;
    const size_t at = (size_t)g->head * a->head_dim, dout_stride = t->a->dout_stride;
    const struct train_rows q = {a->q + g->row * a->q_stride + at, a->q_stride, g->n, a->head_dim};
    const struct train_rows dout = {t->a->dout + g->row * dout_stride + at, dout_stride, g->n,
                                    a->head_dim};
    const uint32_t dim = train_dim(a->head_dim);
    train_copy(t->q, &q);
    train_copy(t->dout, &dout);
    train_scores(t->p, t->q, t->k_t, g->n, a->head_dim);
    train_scores(t->ds, t->dout, t->v_t, g->n, a->head_dim);
    for (uint32_t r = 0; r < g->n; r++)
        grad_row(t, g, r);
    if (t->to_kv) {
        const bool add = g->head > t->heads.begin || g->i > g->j;
        grad_by_keys(t->dv, t->p, t->dout, dim, g->n, add);
        grad_by_keys(t->dk, t->ds, t->q, dim, g->n, add);
    }
    if (t->to_q)
        grad_to_q(t, g);
}

#endif
#endif
