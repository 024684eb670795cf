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
    float *q_rows, *dout_rows;                               /* BF16: pairs of rows */
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
    const size_t at = (size_t)g->head * a->head_dim;
    const float *out = a->out + (g->row + r) * a->out_stride + at;
    const float *dout = t->a->dout + (g->row + r) * t->a->dout_stride + at;
    struct vec sum = vec_set(0);
    for (uint32_t d = 0; d < a->head_dim; d += 16) {
        const uint32_t n = train_lanes(d, a->head_dim);
        sum = vec_fma(vec_load_n(dout + d, n), vec_load_n(out + d, n), sum);
    }
    return vec_fold_add(sum);
}

struct grad_line { /* of a row */
    struct vec p[TRAIN_VECS], ds[TRAIN_VECS];
};

/* Row r: q·k in t->p and dout·v in t->ds to p and ds. */
INLINE struct grad_line grad_line(const struct grad_item *t, const struct grad_pair *g, uint32_t r)
{
    const struct attention_train_args *a = &t->a->of;
    const struct range visible = train_visible(a, g->i, r, g->j);
    const struct vec zero = vec_set(0), delta = vec_set(grad_delta(t, g, r));
    const float distance = (float)((g->i - g->j) * KERN_TRAIN_TILE + r);
    const struct vec lse = vec_set(a->lse[(g->row + r) * a->n_head + g->head]);
    const float *p = t->p + (size_t)r * KERN_TRAIN_TILE, *ds = t->ds + (size_t)r * KERN_TRAIN_TILE;
    struct grad_line line;
    UNROLL
    for (int l = 0; l < (int)TRAIN_VECS; l++) {
        const struct vec s =
            train_scaled(a, vec_load(p + 16 * l), g->head, distance - (float)(16 * l));
        const struct vec e = train_only(vec_exp(vec_sub(s, lse)), zero, l, visible);
        struct vec d = vec_mul(e, vec_sub(vec_load(ds + 16 * l), delta));
        if (a->soft_cap > 0) {
            const struct vec t1 = vec_div(s, vec_set(a->soft_cap));
            d = vec_mul(d, vec_sub(vec_set(1.0f), vec_mul(t1, t1)));
        }
        line.p[l] = e;
        line.ds[l] = train_only(vec_mul(d, vec_set(a->scale)), zero, l, visible);
    }
    return line;
}

INLINE void grad_lines(const struct grad_item *t, const struct grad_pair *g)
{
    for (uint32_t r = 0; r < g->n; r++) {
        const struct grad_line line = grad_line(t, g, r);
        const size_t at = (size_t)r * KERN_TRAIN_TILE;
        UNROLL
        for (int l = 0; l < (int)TRAIN_VECS; l++) {
            vec_store(t->p + at + 16 * l, line.p[l]);
            vec_store(t->ds + at + 16 * l, line.ds[l]);
        }
    }
}

/* Of two rows at a time: pairs of rows of p to row r of t->p, of ds to row r + 1 of t->p; pairs of
 * columns of ds to t->ds, each in its row. */
INLINE void grad_line_pairs(const struct grad_item *t, const struct grad_pair *g)
{
    const struct vec zero = vec_set(0);
    for (uint32_t r = 0; r < g->n; r += 2) {
        const struct grad_line even = grad_line(t, g, r);
        struct grad_line odd = {{zero, zero, zero}, {zero, zero, zero}};
        float *p = t->p + (size_t)r * KERN_TRAIN_TILE, *ds = t->ds + (size_t)r * KERN_TRAIN_TILE;
        if (r + 1 < g->n)
            odd = grad_line(t, g, r + 1);
        UNROLL
        for (int l = 0; l < (int)TRAIN_VECS; l++) {
            vec_store(p + 16 * l, train_pair_factors(even.p[l], odd.p[l]));
            vec_store(p + KERN_TRAIN_TILE + 16 * l, train_pair_factors(even.ds[l], odd.ds[l]));
            train_store_factors(ds + 8 * l, even.ds[l]);
            train_store_factors(ds + KERN_TRAIN_TILE + 8 * l, odd.ds[l]);
        }
    }
}

/* dk and dv [keys][dim] += (scores [n][keys])ᵀ times rows [n][dim]. */
INLINE void grad_to_kv(const struct grad_item *t, const struct grad_pair *g, const bool pairs)
{
    const uint32_t dim = train_dim(t->a->of.head_dim);
    struct tile_product p = {
        .c = t->dv,
        .a = t->p,
        .b = pairs ? t->dout_rows : t->dout,
        .c_stride = dim,
        .a_row = 1,
        .a_k = pairs ? 2 * KERN_TRAIN_TILE : KERN_TRAIN_TILE,
        .b_stride = dim,
        .n_row = KERN_TRAIN_TILE,
        .n_col = dim,
        .n_k = pairs ? (g->n + 1) / 2 : g->n,
        .add = g->head > t->heads.begin || g->i > g->j,
    };
    product_of_cells(&p, pairs);
    p.c = t->dk;
    p.a = pairs ? t->p + KERN_TRAIN_TILE : t->ds;
    p.b = pairs ? t->q_rows : t->q;
    product_of_cells(&p, pairs);
}

INLINE void grad_to_q(const struct grad_item *t, const struct grad_pair *g, const bool pairs)
{
    const struct attention_train_args *a = &t->a->of;
    const uint32_t dim = train_dim(a->head_dim);
    const size_t stride = t->a->dq_stride;
    float *dq = grad_at(t->a->dq, g->row, stride, (size_t)g->head * a->head_dim);
    const struct train_rows rows = {dq, stride, g->n, a->head_dim};
    const uint32_t n_key = train_rows(&t->segment, g->j);
    const bool add = g->j > train_first(a, g->i);
    if (add)
        train_copy(t->dq, &rows);
    const struct tile_product p = {
        .c = t->dq,
        .a = t->ds,
        .b = t->k,
        .c_stride = dim,
        .a_row = KERN_TRAIN_TILE,
        .a_k = 1,
        .b_stride = dim,
        .n_row = train_blocks(g->n),
        .n_col = dim,
        .n_k = pairs ? (n_key + 1) / 2 : n_key,
        .add = add,
    };
    product_of_cells(&p, pairs);
    train_write(dq, stride, t->dq, &rows, NULL);
}

INLINE void grad_pair(const struct grad_item *t, const struct grad_pair *g, const bool pairs)
{
    const struct attention_train_args *a = &t->a->of;
    const size_t at = (size_t)g->head * a->head_dim, dout_stride = t->a->dout_stride;
    const struct train_rows q = {a->q + g->row * a->q_stride + at, a->q_stride, g->n, a->head_dim};
    const struct train_rows dout = {t->a->dout + g->row * dout_stride + at, dout_stride, g->n,
                                    a->head_dim};
    if (pairs) {
        train_copy_pairs(t->q, &q);
        train_copy_pairs(t->dout, &dout);
    } else {
        train_copy(t->q, &q);
        train_copy(t->dout, &dout);
    }
    train_scores(t->p, t->q, t->k_t, &q, pairs);
    train_scores(t->ds, t->dout, t->v_t, &dout, pairs);
    if (pairs)
        grad_line_pairs(t, g);
    else
        grad_lines(t, g);
    if (t->to_kv && pairs) {
        train_pair_rows(t->q_rows, &q);
        train_pair_rows(t->dout_rows, &dout);
    }
    if (t->to_kv)
        grad_to_kv(t, g, pairs);
    if (t->to_q)
        grad_to_q(t, g, pairs);
}

#endif
#endif
