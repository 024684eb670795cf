/* SPDX-License-Identifier: Apache-2.0 */
/* attention on 16 lanes; formula and order: ref/attention.c.
 *
 * Rows are (token, head) pairs that share a KV head, token by token. A work item has up to
 * KERN_ATTENTION_ROWS of them, so that K and V are read once for all; it processes one split after
 * the other (attention_split.h), each in three passes:
 *
 *   scores   lanes are the 16 tokens of a block; q is broadcast. Blocks x rows of sums
 *   softmax  row by row over the blocks
 *   values   lanes are 16 columns of V; p is broadcast. Rows x columns of sums in registers, taken
 *            a chunk of blocks at a time so that the chunk's V stays in the first-level cache
 *
 * int8: the scores are multiplied by K's scales lane by lane, and the softmax multiplies V's scales
 * into p, so that the inner loops of both passes read plain integers.
 *
 * Items of several KV heads, decoding without grouped queries, make the same passes block by block:
 * attention_heads.h.
 *
 * Scratch of an item:
 *   q     [head_dim][ROWS]             transposed: broadcasts are one stream
 *   s     [blocks of a split][ROWS][16]   scores, then p
 *   sum   [ROWS] partial results of the split
 *   joined [ROWS] partial results of the splits so far
 *
 * Each sum of the definition is one lane here, so no bit depends on tiles, chunks or the rows that
 * share an item. Positions before a row's window or after its token are never multiplied, not even
 * by 0, because their K and V may be NaN.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_H
#define QUIRE_KERNELS_WIDE_ATTENTION_H
#include "kernels/wide/attention_scores.h"
#include "kernels/wide/attention_values.h"
#include "kernels/wide/attention_heads.h"
#include "kernels/wide/attention_item_loop.h"
#ifdef VEC_SUMS

#define CHUNK_TOKENS 128u /* of V at a time: 16 KiB at head_dim 64 in bf16, 32 KiB at 128 */

static void item_load_q(const struct item *it)
{
    if (it->n_kv > 1) {
        heads_load_q(it);
        return;
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *q = it->a->q + (r < it->n_row ? item_at(it, r, it->a->q_stride) : 0);
        for (uint32_t d = 0; d < it->a->head_dim; d++)
            it->q[(size_t)d * ROWS + r] = r < it->n_row ? q[d] : 0;
    }
}

/* Compute the partial results of the item's rows for its split, into it->sum. */
static void item_attend(const struct item *it)
{
    if (it->n_kv > 1) {
        heads_attend(it);
        return;
    }
    for (uint32_t c = it->begin / KERN_BLOCK * KERN_BLOCK; c < it->end;
         c += SCORE_BLOCKS * KERN_BLOCK)
        score_blocks(it, c, it->end - c > KERN_BLOCK ? SCORE_BLOCKS : 1);
    memset(it->sum, 0, ROWS * it->sum_stride * sizeof *it->sum);
    for (uint32_t r = 0; r < it->n_row; r++)
        softmax_row(it, r);
    for (uint32_t c = it->begin; c < it->end;) {
        uint32_t left = it->end - c;
        struct pos_range chunk = {c, c + (left < CHUNK_TOKENS ? left : CHUNK_TOKENS)};
        for (uint32_t row = 0; row < it->n_row; row += VALUE_ROWS) {
            uint32_t n = it->n_row - row;
            value_rows(it, row, n < VALUE_ROWS ? n : VALUE_ROWS, chunk);
        }
        c = chunk.end;
    }
}

/* Join a partial result with those of the previous splits; both have partial_dim sums. */
static void partial_join(float *to, const float *from, uint32_t dim)
{
    const float max = to[dim], its_max = from[dim];
    if (from[dim + 1] == 0) /* the row has no position in the split */
        return;
    if (to[dim + 1] == 0) {
        memcpy(to, from, (dim + 2) * sizeof *to);
        return;
    }
    const bool above = its_max > max;
    const struct vec f = vec_exp(vec_set(above ? max - its_max : its_max - max));
    const float *smaller = above ? to : from, *larger = above ? from : to;
    for (uint32_t d = 0; d < dim; d += 16)
        vec_store(to + d, vec_fma(vec_load(smaller + d), f, vec_load(larger + d)));
    const struct vec total = vec_fma(vec_set(smaller[dim + 1]), f, vec_set(larger[dim + 1]));
    vec_store_n(to + dim + 1, total, 1);
    to[dim] = above ? its_max : max;
}

/* The term of the sink of row r's head in the softmax's sum. */
static float item_sink(const struct item *it, uint32_t r, float max)
{
    const float *sinks = it->a->sinks;
    return sinks ? vec_fold_max(vec_exp(vec_set(sinks[item_head(it, r)] - max))) : 0;
}

/* Row r of the item is complete: store it to out. */
static void partial_store(const struct item *it, uint32_t r, const float *part)
{
    const uint32_t dim = it->a->head_dim;
    const float total = part[partial_dim(dim) + 1] + item_sink(it, r, part[partial_dim(dim)]);
    const struct vec inverse = vec_set(1.0f / total);
    const size_t at = item_at(it, r, it->a->out_stride);
    for (uint32_t d = 0; d < dim; d += 16)
        item_store(it, at + d, vec_mul(vec_load(part + d), inverse), dim - d < 16 ? dim - d : 16);
}

static void item_run(const struct item *it)
{
    const size_t stride = it->sum_stride;
    const uint32_t dim = partial_dim(it->a->head_dim), n_row = it->n_row * it->n_kv;
    item_load_q(it);
    for (uint32_t c = it->begin; c < it->end; c = (c / ATTENTION_SPLIT + 1) * ATTENTION_SPLIT) {
        struct item one = item_of_split(it, c);
        if (c == it->begin) /* the first split starts the joined result */
            one.sum = it->joined;
        item_attend(&one);
        for (uint32_t r = 0; r < n_row && c != it->begin; r++)
            partial_join(it->joined + r * stride, one.sum + r * stride, dim);
    }
    for (uint32_t h = 0; h < it->n_kv; h++) {
        const struct item head = item_of_head(it, h);
        if (head.part)
            memcpy(head.part, head.joined, it->n_row * stride * sizeof *head.part);
        for (uint32_t r = 0; r < it->n_row && !head.part; r++)
            partial_store(&head, r, head.joined + r * stride);
    }
}

/* An item with its scratch. */
INLINE struct item item_room(const struct attention_args *a, const struct kern_exec *x)
{
    const uint32_t most = a->context_max < ATTENTION_SPLIT ? a->context_max : ATTENTION_SPLIT;
    const size_t room = ((size_t)most + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    struct item it = {.a = a, .s = x->scratch};
    it.sum_stride = partial_stride(a->head_dim);
    it.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    it.kv_rows = a->head_dim % 16 == 0; /* heads of one row; heads_value takes whole vecs */
    it.q = it.s + ROWS * room;
    it.sum = it.q + ROWS * (((size_t)a->head_dim + 15) / 16 * 16);
    it.joined = it.sum + ROWS * it.sum_stride;
    return it;
}

INLINE void wide_attention(const struct attention_args *a, const struct kern_exec *x)
{
    const struct item of = item_room(a, x);
    attention_item_loop(a, x, &of, ROWS, item_run);
}

/* Row r of an item that was split: join its partial results in ascending order. */
static void row_join(const struct item *it, uint32_t r, float *parts, uint32_t n_split)
{
    const size_t step = item_split_floats(it);
    for (uint32_t i = 1; i < n_split; i++)
        partial_join(parts + r * it->sum_stride, parts + i * step + r * it->sum_stride,
                     partial_dim(it->a->head_dim));
    partial_store(it, r, parts + r * it->sum_stride);
}

INLINE void wide_attention_join(const struct attention_args *a, const struct kern_exec *x)
{
    attention_join_loop(a, x, row_join);
}

#endif
#endif
