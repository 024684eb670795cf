/* SPDX-License-Identifier: Apache-2.0 */
/* attention_train on 16 lanes; formula and order: ref/attention_train.c.
 *
 * An item is a tile of rows of one head of a segment. It goes through the tiles of keys, each
 * copied to scratch, K transposed:   s = q Kᵀ   softmax, row by row   out = out f + p V
 * with both products by tile_product. Masked scores are computed and then set to 0,
 * so values of masked keys of the same tile are multiplied by 0 (all are finite). BF16: q, Kᵀ and p
 * as pairs of columns, V as pairs of rows.
 * Threads: as ops.h; items go to threads by their cost (tiling/train_tiles.h). */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_TRAIN_H
#define QUIRE_KERNELS_WIDE_ATTENTION_TRAIN_H
#include "kernels/wide/train_tile.h"
#ifdef VEC_SUMS

struct train_item {
    const struct attention_train_args *a;
    struct train_segment segment;
    uint32_t head, i;                            /* tile i of queries */
    float *q, *k_t, *v, *out, *s, *most, *total; /* scratch */
};

INLINE struct train_rows train_item_rows(const struct train_item *t, const float *p, size_t stride,
                                         uint32_t tile)
{
    const size_t row = t->segment.row + (size_t)tile * KERN_TRAIN_TILE;
    return (struct train_rows){p + row * stride, stride, train_rows(&t->segment, tile),
                               t->a->head_dim};
}

/* Row r: scores to p, and what that changes of its maximum, its total and its out. */
INLINE void train_softmax_row(const struct train_item *t, uint32_t r, uint32_t j, const bool pairs)
{
    const struct range visible = train_visible(t->a, t->i, r, j);
    const uint32_t dim = train_dim(t->a->head_dim);
    const struct vec zero = vec_set(0), least = vec_set(-INFINITY);
    const float distance = (float)((t->i - j) * KERN_TRAIN_TILE + r);
    float *s = t->s + (size_t)r * KERN_TRAIN_TILE;
    struct vec v[TRAIN_VECS], most = vec_set(t->most[r]), sum = zero;
    UNROLL
    for (int l = 0; l < (int)TRAIN_VECS; l++) {
        v[l] = train_scaled(t->a, vec_load(s + 16 * l), t->head, distance - (float)(16 * l));
        most = vec_max(train_only(v[l], least, l, visible), most);
    }
    const float high = vec_fold_max(most);
    UNROLL
    for (int l = 0; l < (int)TRAIN_VECS; l++) {
        v[l] = train_only(vec_exp(vec_sub(v[l], vec_set(high))), zero, l, visible);
        sum = vec_add(sum, v[l]);
        if (pairs)
            train_store_factors(s + 8 * l, v[l]);
        else
            vec_store(s + 16 * l, v[l]);
    }
    if (visible.begin == visible.end)
        return;
    if (high == t->most[r]) { /* f = 1 */
        t->total[r] += vec_fold_add(sum);
        return;
    }
    const float f = vec_first_lane(vec_exp(vec_set(t->most[r] - high)));
    t->total[r] = fmaf(t->total[r], f, vec_fold_add(sum));
    t->most[r] = high;
    for (uint32_t d = 0; d < dim; d += 16) {
        float *out = t->out + (size_t)r * dim + d;
        vec_store(out, vec_mul(vec_load(out), vec_set(f)));
    }
}

INLINE void train_item_tile(const struct train_item *t, uint32_t j, const bool pairs)
{
    const struct attention_train_args *a = t->a;
    const size_t group = (size_t)(t->head / (a->n_head / a->n_kv_head)) * a->head_dim;
    const struct train_rows k = train_item_rows(t, a->k + group, a->kv_stride, j);
    const struct train_rows v = train_item_rows(t, a->v + group, a->kv_stride, j);
    const uint32_t n = train_rows(&t->segment, t->i), dim = train_dim(a->head_dim);
    const struct train_rows q = {.n = n, .n_col = a->head_dim};
    if (pairs) {
        train_transpose_pairs(t->k_t, t->v, &k);
        train_pair_rows(t->v, &v);
    } else {
        train_copy_transposed(t->k_t, &k);
        train_copy(t->v, &v);
    }
    train_scores(t->s, t->q, t->k_t, &q, pairs);
    for (uint32_t r = 0; r < n; r++)
        train_softmax_row(t, r, j, pairs);
    const struct tile_product by_values = {
        .c = t->out,
        .a = t->s,
        .b = t->v,
        .c_stride = dim,
        .a_row = KERN_TRAIN_TILE,
        .a_k = 1,
        .b_stride = dim,
        .n_row = train_blocks(n),
        .n_col = dim,
        .n_k = pairs ? (k.n + 1) / 2 : k.n,
        .add = true,
    };
    product_of_cells(&by_values, pairs);
}

INLINE void train_item(const struct train_item *t, const bool pairs)
{
    const struct attention_train_args *a = t->a;
    const size_t at = (size_t)t->head * a->head_dim;
    const struct train_rows q = train_item_rows(t, a->q + at, a->q_stride, t->i);
    const size_t row = t->segment.row + (size_t)t->i * KERN_TRAIN_TILE;
    if (pairs)
        train_copy_pairs(t->q, &q);
    else
        train_copy(t->q, &q);
    memset(t->out, 0, KERN_TRAIN_TILE * train_dim(a->head_dim) * sizeof *t->out);
    for (uint32_t r = 0; r < KERN_TRAIN_TILE; r++) {
        t->most[r] = -INFINITY;
        t->total[r] = 0;
    }
    for (uint32_t j = train_first(a, t->i); j <= t->i; j++)
        train_item_tile(t, j, pairs);
    for (uint32_t r = 0; r < q.n; r++) {
        a->lse[(row + r) * a->n_head + t->head] = t->most[r] + logf(t->total[r]);
        t->total[r] = 1.0f / t->total[r];
    }
    train_write(a->out + row * a->out_stride + at, a->out_stride, t->out, &q, t->total);
}

INLINE void train_items(const struct attention_train_args *a, const struct kern_exec *x,
                        const bool pairs)
{
    const size_t tile = (size_t)KERN_TRAIN_TILE * train_pair_dim(a->head_dim);
    struct train_item t = {.a = a, .q = x->scratch};
    uint64_t total = 0;
    t.k_t = t.q + tile;
    t.v = t.k_t + tile;
    t.out = t.v + tile;
    t.s = t.out + tile;
    t.most = t.s + KERN_TRAIN_TILE * KERN_TRAIN_TILE;
    t.total = t.most + KERN_TRAIN_TILE;
    for (uint32_t n = 0; n < a->n_segment; n++)
        total += train_pairs(a, &a->segments[n]) * a->n_head;
    struct train_share share = train_share_of(total, x);
    for (uint32_t n = 0; n < a->n_segment; n++) {
        t.segment = a->segments[n];
        for (t.head = 0; t.head < a->n_head; t.head++)
            for (t.i = 0; t.i < train_n_tile(&t.segment); t.i++)
                if (train_mine(&share, t.i - train_first(a, t.i) + 1))
                    train_item(&t, pairs);
    }
}

INLINE void wide_attention_train(const struct attention_train_args *a, const struct kern_exec *x)
{
    if (a->compute == DT_BF16)
        train_items(a, x, true);
    else
        train_items(a, x, false);
}

#endif
#endif
