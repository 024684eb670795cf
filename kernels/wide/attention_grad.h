/* SPDX-License-Identifier: Apache-2.0 */
/* attention_grad on 16 lanes; formula and order: ref/attention_grad.c.
 *
 * For a tile of keys (K, its transpose, the transpose of V in scratch), the heads that share it,
 * and tiles of their queries, five products by tile_product:
 *     s = q Kᵀ   dp = dout Vᵀ   p and ds, row by row   dv += pᵀ dout   dk += dsᵀ q   dq += ds K
 * dk and dv of the tile stay in scratch, dq waits in memory between tiles of keys. An item is all
 * of a head of K of a segment. Where those are too few for the threads, an item is one tile of keys
 * (four products, to dk and dv) or one tile of queries (three, to dq): the same sums in the same
 * order. Masked scores become p = ds = 0 (wide/attention_train.h). BF16: the rows of a product's
 * first factor as pairs along its sum, the second factor too (tile_product.h).
 * Threads: as ops.h; items go to threads by their cost. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_GRAD_H
#define QUIRE_KERNELS_WIDE_ATTENTION_GRAD_H
#include "kernels/wide/attention_grad_pair.h"
#ifdef VEC_SUMS

enum { GRAD_BOTH_COST = 5, GRAD_KV_COST = 4, GRAD_Q_COST = 3 }; /* products of a pair of tiles */

/* One tile of keys with all tiles of queries of the item. */
INLINE void grad_keys(const struct grad_item *t, uint32_t j, const bool pairs)
{
    const struct attention_train_args *a = &t->a->of;
    const size_t row = t->segment.row + (size_t)j * KERN_TRAIN_TILE, stride = t->a->dkv_stride;
    const size_t at = (size_t)t->kv_head * a->head_dim, from = row * a->kv_stride + at;
    const uint32_t n = train_rows(&t->segment, j), end = train_end(a, &t->segment, j);
    const struct train_rows k = {a->k + from, a->kv_stride, n, a->head_dim};
    const struct train_rows v = {a->v + from, a->kv_stride, n, a->head_dim};
    struct grad_pair g = {.j = j};
    if (pairs) {
        train_transpose_pairs(t->v_t, t->k, &v);
        train_transpose_pairs(t->k_t, t->k, &k);
        train_pair_rows(t->k, &k);
    } else {
        train_copy(t->k, &k);
        train_copy_transposed(t->k_t, &k);
        train_copy_transposed(t->v_t, &v);
    }
    for (size_t head = t->heads.begin; head < t->heads.end; head++)
        for (size_t i = t->queries.begin > j ? t->queries.begin : j; i < end && i < t->queries.end;
             i++) {
            g.head = (uint32_t)head;
            g.i = (uint32_t)i;
            g.n = train_rows(&t->segment, g.i);
            g.row = t->segment.row + i * KERN_TRAIN_TILE;
            grad_pair(t, &g, pairs);
        }
    if (!t->to_kv)
        return;
    train_write(grad_at(t->a->dk, row, stride, at), stride, t->dk, &k, NULL);
    train_write(grad_at(t->a->dv, row, stride, at), stride, t->dv, &v, NULL);
}

/* One compiled function for each type: three places call it. */
static void grad_item(const struct grad_item *t)
{
    const bool pairs = t->a->of.compute == DT_BF16;
    for (size_t j = t->keys.begin; j < t->keys.end; j++)
        if (pairs)
            grad_keys(t, (uint32_t)j, true);
        else
            grad_keys(t, (uint32_t)j, false);
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
    const size_t tile = (size_t)KERN_TRAIN_TILE * train_pair_dim(t->a->of.head_dim);
    float **const arrays[] = {&t->q, &t->dout, &t->dq, &t->k, &t->k_t, &t->v_t, &t->dk, &t->dv};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = scratch + i * tile;
    t->q_rows = t->q + tile / 2; /* pairs take half of a tile */
    t->dout_rows = t->dout + tile / 2;
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
