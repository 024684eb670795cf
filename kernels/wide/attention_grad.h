/* SPDX-License-Identifier: Apache-2.0 */
/* attention_grad on 16 lanes; formula and order: ref/attention_grad.c.
 *
 * For a tile of keys (K, its transpose, the transpose of V in scratch), the heads that share it, and
 * tiles of their queries, five products by tile_product:
 *     s = q Kᵀ   dp = dout Vᵀ   p and ds, row by row   dv += pᵀ dout   dk += dsᵀ q   dq += ds K
 * dk and dv of the tile stay in scratch, dq waits in memory between tiles of keys. An item is all of
 * a head of K of a segment. Where those are too few for the threads, an item is one tile of keys
 * (four products, to dk and dv) or one tile of queries (three, to dq): the same sums in the same
 * order. Scores that a row does not see become p = ds = 0 (wide/attention_train.h).
 * Threads: as ops.h; items go to threads by their cost. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_GRAD_H
#define QUIRE_KERNELS_WIDE_ATTENTION_GRAD_H
#include "kernels/wide/train_tile.h"
#ifdef VEC_SUMS

enum { GRAD_BOTH_COST = 5, GRAD_KV_COST = 4, GRAD_Q_COST = 3 }; /* products of a pair of tiles */

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

/* One tile of keys with all tiles of queries of the item. */
INLINE void grad_keys(const struct grad_item *t, uint32_t j)
{
    const struct attention_train_args *a = &t->a->of;
    const size_t row = t->segment.row + (size_t)j * KERN_TRAIN_TILE, stride = t->a->dkv_stride;
    const size_t at = (size_t)t->kv_head * a->head_dim, from = row * a->kv_stride + at;
    const uint32_t n = train_rows(&t->segment, j), end = train_end(a, &t->segment, j);
    const struct train_rows k = {a->k + from, a->kv_stride, n, a->head_dim};
    const struct train_rows v = {a->v + from, a->kv_stride, n, a->head_dim};
    struct grad_pair g = {.j = j};
    train_copy(t->k, &k);
    train_copy_transposed(t->k_t, &k);
    train_copy_transposed(t->v_t, &v);
    for (size_t head = t->heads.begin; head < t->heads.end; head++)
        for (size_t i = t->queries.begin > j ? t->queries.begin : j; i < end && i < t->queries.end;
             i++) {
            g.head = (uint32_t)head;
            g.i = (uint32_t)i;
            g.n = train_rows(&t->segment, g.i);
            g.row = t->segment.row + i * KERN_TRAIN_TILE;
            grad_pair(t, &g);
        }
    if (!t->to_kv)
        return;
    train_write(grad_at(t->a->dk, row, stride, at), stride, t->dk, &k, NULL);
    train_write(grad_at(t->a->dv, row, stride, at), stride, t->dv, &v, NULL);
}

INLINE void grad_item(const struct grad_item *t)
{
    for (size_t j = t->keys.begin; j < t->keys.end; j++)
        grad_keys(t, (uint32_t)j);
}

/* Whole heads of K: what the busiest thread has to do, in pairs of tiles. */
INLINE uint64_t grad_busiest(const struct attention_grad_args *a, uint64_t total, uint32_t nth)
{
    const uint32_t group = a->of.n_head / a->of.n_kv_head;
    uint64_t at = 0, most = 0, own = 0, thread = 0;
    for (uint32_t n = 0; n < a->of.n_segment; n++)
        for (uint32_t h = 0; h < a->of.n_kv_head; h++) {
            const uint64_t cost = train_pairs(&a->of, &a->of.segments[n]) * group;
            const uint64_t of = total ? (2 * at + cost) * nth / (2 * total) : 0;
            own = of == thread ? own + cost : cost;
            thread = of;
            most = own > most ? own : most;
            at += cost;
        }
    return most;
}

/* Items of tiles, of the head of K that t is set to. */
INLINE void grad_tiles(struct grad_item *t, struct train_share *share)
{
    const struct attention_train_args *a = &t->a->of;
    const uint32_t n_tile = train_n_tile(&t->segment);
    const struct range heads = t->heads;
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint32_t end = train_end(a, &t->segment, j);
        if (!train_mine(share, (end - j) * (heads.end - heads.begin) * GRAD_KV_COST))
            continue;
        t->to_q = false;
        t->to_kv = true;
        t->keys = (struct range){j, j + 1};
        t->queries = (struct range){0, n_tile};
        grad_item(t);
    }
    t->to_q = true;
    t->to_kv = false;
    for (size_t head = heads.begin; head < heads.end; head++)
        for (uint32_t i = 0; i < n_tile; i++) {
            const uint32_t first = train_first(a, i);
            if (!train_mine(share, (uint64_t)(i - first + 1) * GRAD_Q_COST))
                continue;
            t->heads = (struct range){head, head + 1};
            t->queries = (struct range){i, i + 1};
            t->keys = (struct range){first, i + 1};
            grad_item(t);
        }
    t->heads = heads;
}

INLINE void grad_scratch(struct grad_item *t, float *scratch)
{
    const size_t tile = (size_t)KERN_TRAIN_TILE * train_dim(t->a->of.head_dim);
    float **const arrays[] = {&t->q, &t->dout, &t->dq, &t->k, &t->k_t, &t->v_t, &t->dk, &t->dv};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = scratch + i * tile;
    t->p = scratch + sizeof arrays / sizeof *arrays * tile;
    t->ds = t->p + KERN_TRAIN_TILE * KERN_TRAIN_TILE;
}

INLINE void wide_attention_grad(const struct attention_grad_args *a, const struct kern_exec *x)
{
    const uint32_t group = a->of.n_head / a->of.n_kv_head;
    struct grad_item t = {.a = a};
    uint64_t total = 0;
    for (uint32_t n = 0; n < a->of.n_segment; n++)
        total += train_pairs(&a->of, &a->of.segments[n]) * a->of.n_head;
    const uint64_t split_cost = total * (GRAD_KV_COST + GRAD_Q_COST);
    const bool whole = grad_busiest(a, total, x->nth) * x->nth * GRAD_BOTH_COST <= split_cost;
    struct train_share share = train_share_of(whole ? total : split_cost, x);
    grad_scratch(&t, x->scratch);
    for (uint32_t n = 0; n < a->of.n_segment; n++)
        for (t.kv_head = 0; t.kv_head < a->of.n_kv_head; t.kv_head++) {
            t.segment = a->of.segments[n];
            t.heads = (struct range){(size_t)t.kv_head * group, (size_t)(t.kv_head + 1) * group};
            if (!whole) {
                grad_tiles(&t, &share);
                continue;
            }
            t.to_q = t.to_kv = true;
            t.keys = t.queries = (struct range){0, train_n_tile(&t.segment)};
            if (train_mine(&share, train_pairs(&a->of, &t.segment) * group))
                grad_item(&t);
        }
}

#endif
#endif
