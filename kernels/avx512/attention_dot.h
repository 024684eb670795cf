/* SPDX-License-Identifier: Apache-2.0 */
/* attention_dot - attention over bf16 or int8 K and V by instructions that multiply pairs of bf16;
 * private to kernels/avx512 and kernels/amx. Formula: ref/attention.c. The file that includes this
 * has the two products, and dot_begin, which is called before those of an item:
 *
 *     dot_scores  s[r][c] = q[r,:]·K[c,:] of DOT_GROUP positions
 *     dot_values  sum[r,:] += p[r,:] V of up to DOT_TILE positions
 *
 * What differs from the definition: q and the softmax weights p are rounded to bf16, as activations
 * are for every other product; int8 K and V are bf16 numbers already. And the softmax is online
 * (arXiv:2205.14135), so that scratch does not grow with the context: positions go in tiles of
 * DOT_TILE,
 *
 *     m' = max(m, s), p = 2^((s - m') scale log2 e), f = 2^((m - m') scale log2 e)
 *     total = total f + sum p, sum = sum f + p V                 and at last out = sum / total
 *
 * int8: s is multiplied by K's scale, p by V's when it has been added to total.
 *
 * Order: tiles begin at multiples of DOT_TILE and the instruction at even positions (tiles of AMX:
 * multiples of 32) of the sequence, wherever a chunk or an item does: a row has the same bits in
 * all. A row that does not see a position has p = 0 there, which adds 0 exactly when V is finite;
 * where it is not, the item's rows go one at a time, and each sees just its own positions. The last
 * addition makes -0 and +0 one zero: sums that a flush left at -0 would show who shared the item.
 *
 * Subnormals count as zero everywhere (MXCSR), as they do in the instructions.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_ATTENTION_DOT_H
#define QUIRE_KERNELS_AVX512_ATTENTION_DOT_H
#include <math.h>
#include <stdbool.h>
#include "kernels/avx512/dot_softmax.h"
#include "kernels/wide/attention_walk.h"
#ifdef __AVX512BF16__

#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */
#define LOG2_E          0x1.715476p+0f

/* Scores of a tile's positions from tile.begin to tile.end (rounded to DOT_GROUP); asks for the V
 * of the same positions meanwhile. Blocks that are not there are taken twice: nobody reads that. */
static void dot_scores_of(const struct dot_item *d, uint32_t first, struct span tile)
{
    const struct item *it = d->it;
    const uint32_t last = (it->end - 1) / KERN_BLOCK;
    for (uint32_t c = tile.begin / DOT_GROUP * DOT_GROUP; c < tile.end; c += DOT_GROUP) {
        const char *k[DOT_BLOCKS];
        for (uint32_t b = 0; b < DOT_BLOCKS; b++) {
            uint32_t i = c / KERN_BLOCK + b, low = it->begin / KERN_BLOCK;
            i = i > last ? last : i < low ? low : i; /* before a window blocks may be gone */
            k[b] = item_block(it, it->a->k_cache, i * KERN_BLOCK);
            item_ahead(it, it->a->v_cache, c + b * KERN_BLOCK);
            if (it->a->kv_dtype == DT_I8) {
                uint16_t *to = d->room.k + (size_t)b * KERN_BLOCK * d->room.dim;
                dot_widen_k(to, k[b], it->a->head_dim);
                k[b] = (const char *)to;
            }
        }
        dot_scores(d, k, d->room.s + (c - first));
    }
}

/* Columns c … c + 31 of a row's sums in their order; dot_pairs has another for bf16. */
INLINE void dot_column_order(const struct dot_item *d, const float *sum, struct vec out[2])
{
    const __m512i at = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512 a = _mm512_loadu_ps(sum), b = _mm512_loadu_ps(sum + 16);
    out[0].v = a;
    out[1].v = b;
    if (d->it->a->kv_dtype != DT_BF16)
        return;
    out[0].v = _mm512_permutex2var_ps(a, at, b);
    out[1].v = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(8)), b);
}

static void dot_finish(const struct dot_item *d)
{
    const struct item *it = d->it;
    const struct vec zero = vec_set(0);
    const uint32_t dim = it->a->head_dim;
    for (uint32_t r = 0; r < it->n_row; r++) {
        const struct vec inverse = vec_set(1.0f / d->room.total[r]);
        const size_t at = item_at(it, r, it->a->out_stride);
        for (uint32_t c = 0; c < dim; c += 32) {
            struct vec y[2];
            dot_column_order(d, d->room.sum + (size_t)r * d->room.dim + c, y);
            for (uint32_t i = 0; i < 2 && c + 16 * i < dim; i++) {
                uint32_t left = dim - c - 16 * i;
                item_store(it, at + c + 16 * i, vec_add(vec_mul(y[i], inverse), zero),
                           left < 16 ? left : 16);
            }
        }
    }
}

static void dot_run(const struct item *it)
{
    struct dot_item d = {.it = it, .log2_scale = LOG2_E * (it->a->soft_cap > 0 ? 1 : it->a->scale)};
    dot_room_cut(&d.room, it->s, it->a->head_dim);
    dot_begin(&d);
    dot_load_q(&d);
    memset(d.room.sum, 0, DOT_ROWS * d.room.dim * sizeof *d.room.sum);
    for (uint32_t r = 0; r < DOT_ROWS; r++) {
        d.room.max[r] = -INFINITY;
        d.room.total[r] = 0;
    }
    for (uint32_t t = it->begin / DOT_TILE * DOT_TILE; t < it->end; t += DOT_TILE) {
        const struct span whole = {it->begin, it->end};
        struct span tile = span_cut(whole, (struct span){t, t + DOT_TILE});
        tile.begin = tile.begin / 32 * 32;
        tile.end = (tile.end + 31) / 32 * 32;
        dot_scores_of(&d, t, tile);
        dot_softmax_typed(&d, t, tile);
        dot_pairs_of_v(&d, tile.begin, tile.end - tile.begin, whole);
        dot_values(&d, d.room.p + (tile.begin - t), d.room.v, tile.end - tile.begin);
    }
    dot_finish(&d);
}

/* An element of V at positions begin … end - 1 that is not finite. */
static bool dot_wild(const struct item *it, uint32_t begin, uint32_t end)
{
    for (uint32_t c = begin; c < end; c++) {
        const char *row = dot_row(it, c, (struct span){begin, end});
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

/* Positions that some rows of the item see and others do not lie at its two ends. */
static void dot_item_run(const struct item *it)
{
    const struct span first = item_span(it, 0), last = item_span(it, it->n_row - 1);
    const bool apart = last.begin >= first.end; /* no position that all rows see */
    const uint32_t low = apart ? last.end : last.begin;
    const uint32_t high = apart ? last.end : first.end;
    if (first.end == last.end ||
        !(dot_wild(it, first.begin, low) || dot_wild(it, high, last.end))) {
        dot_run(it);
        return;
    }
    struct item one = *it;
    for (uint32_t r = 0; r < it->n_row; r++) {
        item_rows(&one, it->first + r, 1);
        dot_run(&one);
    }
}

/* A real call, so that none of its arithmetic can move past the switch of MXCSR. */
static __attribute__((noinline)) void dot_walk(const struct attention_args *a,
                                               const struct kern_exec *x)
{
    struct item of = {.s = x->scratch};
    of.head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    attention_walk(a, x, &of, DOT_ROWS, dot_item_run);
}

INLINE void attention_dot(const struct attention_args *a, const struct kern_exec *x)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMAL);
    dot_walk(a, x);
    _mm_setcsr(before);
}

#endif
#endif
