/* SPDX-License-Identifier: Apache-2.0 */
/* attention_dot - attention over bf16 or int8 K and V by instructions that multiply pairs of bf16;
 * private to kernels/avx512 and kernels/amx. Formula: ref/attention.c. The including file defines
 * DOT_AT and DOT_STEP (positions: multiples at which groups of scores begin; that values are added
 * by), the two products, and dot_begin, which is called before the products of an item:
 *
 *     dot_scores  s[r][c] = q[r,:]·K[c,:] of DOT_GROUP positions
 *     dot_values  sum[r,:] += p[r,:] V of up to DOT_TILE positions
 *
 * Differences from the definition: q and the softmax weights p are rounded to bf16, as activations
 * of all other products; int8 K and V are exact in bf16. The softmax is online (arXiv:2205.14135),
 * so that scratch does not grow with the context; positions are processed in tiles of DOT_TILE,
 *
 *     m' = max(m, s), p = 2^((s - m') scale log2 e), f = 2^((m - m') scale log2 e)
 *     total = total f + sum p, sum = sum f + p V                 and at last out = sum / total
 *
 * int8: s is multiplied by K's scale, p by V's when it has been added to total. Each split
 * (attention_split.h) begins with m = -inf and sums of 0; splits are joined as in ref/attention.c,
 * by powers of 2 of the differences of m, scaled as above.
 *
 * Order: tiles begin at multiples of DOT_TILE and instructions at even positions (tiles of AMX:
 * multiples of 32) of the sequence, independent of chunks and items, so a row's bits do not depend
 * on them. A masked position has p = 0, which adds exactly 0 if V is finite; if V is not finite,
 * the item's rows are processed one at a time, each over its own positions. The last addition turns
 * -0 into +0: otherwise a sum that was flushed to -0 would depend on the other rows of the item.
 * Subnormals count as zero everywhere (MXCSR), as they do in the instructions.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_ATTENTION_DOT_H
#define QUIRE_KERNELS_AVX512_ATTENTION_DOT_H
#include <math.h>
#include <stdbool.h>
#include "kernels/avx512/dot_join.h"
#include "kernels/avx512/dot_softmax.h"
#include "kernels/wide/attention_item_loop.h"
#ifdef __AVX512BF16__

#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */

/* Scores of a tile's positions from tile.begin to tile.end, and of some around them; prefetches V
 * of the same positions. For missing blocks another block is used; their scores are not read. */
static void dot_scores_of(const struct dot_item *d, uint32_t first, struct pos_range tile)
{
    const struct item *it = d->it;
    const uint32_t last = (it->end - 1) / KERN_BLOCK;
    for (uint32_t c = tile.begin / DOT_AT * DOT_AT; c < tile.end; c += DOT_GROUP) {
        const uint32_t left = (tile.end - c + KERN_BLOCK - 1) / KERN_BLOCK;
        const uint32_t n_block = left < DOT_BLOCKS && DOT_AT < DOT_GROUP ? left : DOT_BLOCKS;
        const char *k[DOT_BLOCKS];
        for (uint32_t b = 0; b < n_block; b++) {
            uint32_t i = c / KERN_BLOCK + b, low = it->begin / KERN_BLOCK;
            i = i > last  ? last
                : i < low ? low
                          : i; /* blocks before the window may have been
                                                      * released */
            k[b] = item_block(it, it->a->k_cache, i * KERN_BLOCK);
            item_prefetch(it, it->a->v_cache, c + b * KERN_BLOCK);
            if (it->a->kv_dtype == DT_I8) {
                uint16_t *to = d->room.k + (size_t)b * KERN_BLOCK * d->room.dim;
                dot_widen_k(to, k[b], it->a->head_dim);
                k[b] = (const char *)to;
            }
        }
        dot_scores(d, k, n_block, d->room.s + (c - first));
    }
}

/* Weights of the positions `range` of the tile that begins at `first`, and their sums, by way of
 * pairs of V in scratch. */
static void dot_tile_pairs(const struct dot_item *d, uint32_t first, struct pos_range range)
{
    const struct pos_range tile = {range.begin / DOT_STEP * DOT_STEP,
                                   (range.end + DOT_STEP - 1) / DOT_STEP * DOT_STEP};
    const struct pos_range whole = {d->it->begin, d->it->end};
    dot_scores_of(d, first, tile);
    dot_softmax_typed(d, first, tile);
    dot_pairs_of_v(d, tile.begin, tile.end - tile.begin, whole);
    dot_values(d, d->room.p + (tile.begin - first), d->room.v, tile.end - tile.begin);
}

/* Compute one split from zero sums; the number of rows is that of the tiles. */
static void dot_split(const struct dot_item *d)
{
    const struct item *it = d->it;
    const uint32_t n_row = dot_rows(it);
    memset(d->room.sum, 0, (size_t)n_row * d->room.dim * sizeof *d->room.sum);
    for (uint32_t r = 0; r < n_row; r++) {
        d->room.max[r] = -INFINITY;
        d->room.total[r] = 0;
    }
    for (uint32_t t = it->begin / DOT_TILE * DOT_TILE; t < it->end; t += DOT_TILE) {
        const struct pos_range whole = {it->begin, it->end};
        dot_tile(d, t, pos_range_cut(whole, (struct pos_range){t, t + DOT_TILE}));
    }
}

static void dot_run(const struct item *it)
{
    struct dot_item d = {.it = it, .log2_scale = dot_scale(it->a), .begin = it->begin};
    struct item one;
    dot_scratch_cut(&d.room, it->s, it->a->head_dim);
    dot_begin(&d);
    memset(d.room.q, 0, dot_rows(it) * d.room.dim * sizeof *d.room.q);
    for (uint32_t h = 0; h < it->n_kv; h++) {
        const struct dot_item head = dot_head(&d, &one, h);
        dot_load_q(&head);
    }
    for (uint32_t c = it->begin; c < it->end; c = (c / ATTENTION_SPLIT + 1) * ATTENTION_SPLIT) {
        const struct item split = item_of_split(it, c);
        d.it = &split;
        dot_split(&d);
        for (uint32_t h = 0; h < it->n_kv; h++) {
            const struct dot_item head = dot_head(&d, &one, h);
            float *to = it->part ? it->part + h * item_part_floats(it) : head.room.parts;
            dot_split_end(&head, to, c == it->begin, !it->part && split.end == it->end);
        }
    }
}

/* True if V has a non-finite element at positions begin … end - 1. */
static bool dot_wild(const struct item *it, uint32_t begin, uint32_t end)
{
    for (uint32_t c = begin; c < end; c++) {
        const char *row = dot_row(it, c, (struct pos_range){begin, end});
        if (it->a->kv_dtype == DT_I8) {
            if (!isfinite(item_scales(it, item_block(it, it->a->v_cache, c))[c % KERN_BLOCK]))
                return true;
            continue;
        }
        for (uint32_t i = 0; i < it->a->head_dim; i += 16) {
            uint32_t left = it->a->head_dim - i, n = left < 16 ? left : 16;
            struct vec v = vec_load_bf16_n((const uint16_t *)(const void *)row + i, n);
            if (_mm512_fpclass_ps_mask(v.v, 0x99)) /* NaNs, both infinities */
                return true;
        }
    }
    return false;
}

/* Positions that are in the context of some rows of the item only are at its two ends. */
static void dot_item_run(const struct item *it)
{
    const struct pos_range first = item_range(it, 0), last = item_range(it, it->n_row - 1);
    const bool apart = last.begin >= first.end; /* no position that all rows see */
    const uint32_t low = apart ? last.end : last.begin;
    const uint32_t high = apart ? last.end : first.end;
    if ((first.begin == last.begin && first.end == last.end) ||
        !(dot_wild(it, first.begin, low) || dot_wild(it, high, last.end))) {
        dot_run(it);
        return;
    }
    struct item one = *it;
    for (uint32_t r = 0; r < it->n_row; r++) {
        one.part = it->part ? it->part + r * partial_stride(it->a->head_dim) : NULL;
        item_rows(&one, it->first + r, 1);
        dot_run(&one);
    }
}

/* A real call, so that none of its arithmetic can move past the switch of MXCSR. */
static __attribute__((noinline)) void dot_item_loop(const struct attention_args *a,
                                                    const struct kern_exec *x)
{
    struct item of = {.s = x->scratch};
    of.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    of.kv_rows = DOT_KV_ROWS;
    attention_item_loop(a, x, &of, DOT_ROWS, dot_item_run);
}

INLINE void attention_dot(const struct attention_args *a, const struct kern_exec *x)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMAL);
    dot_item_loop(a, x);
    _mm_setcsr(before);
}

static __attribute__((noinline)) void dot_join_loop(const struct attention_args *a,
                                                    const struct kern_exec *x)
{
    attention_join_loop(a, x, dot_row_join);
}

INLINE void attention_dot_join(const struct attention_args *a, const struct kern_exec *x)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMAL);
    dot_join_loop(a, x);
    _mm_setcsr(before);
}

#endif
#endif
