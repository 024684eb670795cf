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
#include "kernels/wide/attention_walk.h"
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
        const size_t at = item_at(it, r, it->a->out_stride);
        for (uint32_t d = 0; d < dim; d += 16) {
            struct vec y = vec_mul(vec_load(it->sum + r * it->sum_stride + d), vec_set(inverse[r]));
            item_store(it, at + d, y, dim - d < 16 ? dim - d : 16);
        }
    }
}

INLINE void wide_attention(const struct attention_args *a, const struct kern_exec *x)
{
    const size_t room = ((size_t)a->context_max + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    struct item of = {.s = x->scratch};
    of.sum_stride = ((size_t)a->head_dim + 15) / 16 * 16;
    of.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    of.q = of.s + ROWS * room;
    of.sum = of.q + ROWS * of.sum_stride;
    attention_walk(a, x, &of, ROWS, item_run);
}

#endif
#endif
