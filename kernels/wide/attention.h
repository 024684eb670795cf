/* SPDX-License-Identifier: Apache-2.0 */
/* attention on 16 lanes; formula and order: ref/attention.c.
 *
 * Rows are (token, head) pairs that share a KV head, token by token. An item of work is up to
 * KERN_ATTENTION_ROWS of them, so that K and V are read once for all; it goes in three passes:
 *
 *   scores   lanes are the 16 tokens of a block; q is broadcast. Blocks x rows of sums
 *   softmax  row by row over the blocks
 *   values   lanes are 16 columns of V; p is broadcast. Rows x columns of sums in registers, taken
 *            a chunk of blocks at a time so that the chunk's V stays in the first-level cache
 *
 * int8: the scores are multiplied by K's scales lane by lane, and the softmax puts V's scales into
 * p, so that both passes read plain integers.
 *
 * Scratch of an item:
 *   q     [head_dim][ROWS]             transposed: broadcasts are one stream
 *   s     [blocks of the context][ROWS][16]   scores, then p
 *   sum   [ROWS][head_dim rounded up to 16]
 *
 * Each sum of the definition is one lane here, so tiles, chunks and which rows share an item
 * change no bit. Positions before a row's window or after its token are never multiplied in, not
 * even by 0: their K and V may be NaN.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_H
#define QUIRE_KERNELS_WIDE_ATTENTION_H
#include "kernels/wide/attention_scores.h"
#include "kernels/wide/attention_values.h"
#ifdef VEC_SUMS

#define CHUNK_TOKENS 128u /* of V at a time: 16 KiB at head_dim 64 in bf16, 32 KiB at 128 */

static void item_load_q(const struct item *it)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *q = it->a->q + (r < it->n_row ? item_at(it, r, it->a->q_stride) : 0);
        for (uint32_t d = 0; d < it->a->head_dim; d++)
            it->q[(size_t)d * ROWS + r] = r < it->n_row ? q[d] : 0;
    }
}

static void item_run(const struct item *it)
{
    const uint32_t dim = it->a->head_dim;
    float inverse[ROWS];
    item_load_q(it);
    for (uint32_t c = it->begin / KERN_BLOCK * KERN_BLOCK; c < it->end;
         c += SCORE_BLOCKS * KERN_BLOCK)
        score_blocks(it, c, it->end - c > KERN_BLOCK ? SCORE_BLOCKS : 1);
    for (uint32_t r = 0; r < it->n_row; r++)
        inverse[r] = softmax_row(it, r);
    memset(it->sum, 0, ROWS * it->sum_stride * sizeof *it->sum);
    for (uint32_t c = it->begin; c < it->end;) {
        uint32_t left = it->end - c;
        struct span chunk = {c, c + (left < CHUNK_TOKENS ? left : CHUNK_TOKENS)};
        for (uint32_t row = 0; row < it->n_row; row += VALUE_ROWS) {
            uint32_t n = it->n_row - row;
            value_rows(it, row, n < VALUE_ROWS ? n : VALUE_ROWS, chunk);
        }
        c = chunk.end;
    }
    for (uint32_t r = 0; r < it->n_row; r++) {
        float *out = it->a->out + item_at(it, r, it->a->out_stride);
        for (uint32_t d = 0; d < dim; d += 16) {
            struct vec y = vec_mul(vec_load(it->sum + r * it->sum_stride + d), vec_set(inverse[r]));
            vec_store_n(out + d, y, dim - d < 16 ? dim - d : 16);
        }
    }
}

/* Items of one sequence, `rows` rows each. */
INLINE uint32_t seq_items(const struct attention_args *a, const struct attention_seq *s,
                          uint32_t rows)
{
    return a->n_kv_head * ((s->n_query * item_group(a) + rows - 1) / rows);
}

/* Fewer rows an item when there would not be enough items for all threads. */
INLINE uint32_t rows_per_item(const struct attention_args *a, uint32_t nth)
{
    uint32_t rows = ROWS;
    for (; rows > 1; rows /= 2) {
        size_t n = 0;
        for (uint32_t i = 0; i < a->n_seq; i++)
            n += seq_items(a, &a->seqs[i], rows);
        if (n >= nth)
            break;
    }
    return rows;
}

INLINE void item_init(struct item *it, const struct attention_args *a, uint32_t i_seq, uint32_t i,
                      uint32_t rows)
{
    const struct attention_seq *s = &a->seqs[i_seq];
    const uint32_t n_row = s->n_query * item_group(a), per_head = (n_row + rows - 1) / rows;
    it->a = a;
    it->seq = s;
    it->kv_head = i / per_head;
    it->first = i % per_head * rows;
    it->n_row = n_row - it->first < rows ? n_row - it->first : rows;
    it->begin = item_span(it, 0).begin;
    it->end = item_span(it, it->n_row - 1).end;
}

/* Cost of an item: the positions its rows walk, plus some for having it. */
INLINE uint64_t item_cost(const struct item *it)
{
    return (uint64_t)(it->end - it->begin + KERN_BLOCK) * it->n_row;
}

/* The items in order; a thread takes those whose middle lies in its share of the total cost. */
INLINE void wide_attention(const struct attention_args *a, const struct kern_exec *x)
{
    const uint32_t rows = rows_per_item(a, x->nth);
    const size_t room = ((size_t)a->context_max + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    struct item it = {.s = x->scratch};
    uint64_t total = 0, done = 0;
    it.sum_stride = ((size_t)a->head_dim + 15) / 16 * 16;
    it.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    it.q = it.s + ROWS * room;
    it.sum = it.q + ROWS * it.sum_stride;
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            total += item_cost(&it);
        }
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            uint64_t cost = item_cost(&it);
            if ((done + cost / 2) * x->nth / total == x->ith)
                item_run(&it);
            done += cost;
        }
}

#endif
#endif
