/* SPDX-License-Identifier: Apache-2.0 */
/* dot_softmax - online softmax: scores of a tile to weights, and rescaling of the previous sums.
 * See attention_dot.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_SOFTMAX_H
#define QUIRE_KERNELS_AVX512_DOT_SOFTMAX_H
#include <math.h>
#include <stdbool.h>
#include "kernels/avx512/dot_item.h"
#include "kernels/avx512/exp2.h"
#include "kernels/wide/exp.h"
#ifdef __AVX512BF16__

INLINE __mmask16 dot_seen(uint32_t c,
                          struct pos_range s) /* lanes of positions c … within the split */
{
    uint32_t high = s.end - c < KERN_BLOCK ? s.end - c : KERN_BLOCK;
    uint32_t low = s.begin > c ? s.begin - c : 0;
    return (__mmask16)(vec_mask(high) & ~vec_mask(low));
}

#define DOT_LINES 8u /* their scores stay in the first-level cache */
struct dot_line {    /* a row of a tile */
    const struct dot_item *d;
    float *s; /* its scores from position `first` on */
    uint16_t *p;
    uint32_t first;
    struct pos_range range; /* its positions in the tile */
    float max;              /* times log2_scale */
    float slope;            /* ALiBi: its head's, and its position */
    uint32_t pos, row;
};

struct dot_form { /* constants where they are inlined */
    bool int8, cap, slopes;
};

/* Largest of 16 scores of the line and `max`; int8's scale, ALiBi and the soft cap go into the
 * scores. */
INLINE __m512 dot_max16(const struct dot_line *l, uint32_t c, __mmask16 seen, struct dot_form f,
                        __m512 max)
{
    const struct item *it = l->d->it;
    float *s = l->s + (c - l->first);
    struct vec v = vec_load(s);
    if (f.int8)
        v = vec_mul(v, vec_load(item_scales(it, item_block(it, it->a->k_cache, c))));
    if (f.cap || f.slopes)
        v = vec_mul(v, vec_set(it->a->scale));
    if (f.slopes)
        v = vec_fnma(vec_set(l->slope), vec_abs(item_distance(l->pos, c)), v);
    if (f.cap) {
        const struct vec cap = vec_set(it->a->soft_cap);
        v = vec_mul(cap, vec_tanh(vec_div(v, cap)));
    }
    if (f.int8 || f.cap || f.slopes)
        vec_store(s, v);
    return _mm512_mask_max_ps(max, seen, v.v, max); /* max where v is NaN */
}

/* 16 weights of the line, added to sum. */
INLINE __m512 dot_weights16(const struct dot_line *l, uint32_t c, __mmask16 seen, struct dot_form f,
                            __m512 sum)
{
    const struct item *it = l->d->it;
    const __m512 scale = _mm512_set1_ps(l->d->log2_scale), max = _mm512_set1_ps(l->max);
    __m512 x = exp2_rough(_mm512_fmsub_ps(_mm512_loadu_ps(l->s + (c - l->first)), scale, max));
    x = _mm512_maskz_mov_ps(seen, x);
    sum = _mm512_add_ps(sum, x);
    if (f.int8) {
        const float *of_v = item_scales(it, item_block(it, it->a->v_cache, c));
        x = _mm512_maskz_mul_ps(seen, x, _mm512_loadu_ps(of_v));
    }
    _mm256_storeu_si256((__m256i *)(void *)(l->p + (c - l->first)), (__m256i)_mm512_cvtneps_pbh(x));
    return sum;
}

/* The blocks of a line: a partial one, complete ones, a partial one. */
INLINE float dot_line_max(const struct dot_line *l, struct dot_form f)
{
    const struct pos_range s = l->range;
    __m512 max = _mm512_set1_ps(-INFINITY);
    uint32_t c = s.begin / KERN_BLOCK * KERN_BLOCK;
    if (c < s.begin) {
        max = dot_max16(l, c, dot_seen(c, s), f, max);
        c += KERN_BLOCK;
    }
    for (; c + KERN_BLOCK <= s.end; c += KERN_BLOCK)
        max = dot_max16(l, c, 0xffff, f, max);
    if (c < s.end)
        max = dot_max16(l, c, dot_seen(c, s), f, max);
    return _mm512_reduce_max_ps(max);
}

INLINE float dot_line_weights(const struct dot_line *l, struct dot_form f)
{
    const struct pos_range s = l->range;
    struct vec sum = vec_set(0);
    uint32_t c = s.begin / KERN_BLOCK * KERN_BLOCK;
    if (c < s.begin) {
        sum.v = dot_weights16(l, c, dot_seen(c, s), f, sum.v);
        c += KERN_BLOCK;
    }
    for (; c + KERN_BLOCK <= s.end; c += KERN_BLOCK)
        sum.v = dot_weights16(l, c, 0xffff, f, sum.v);
    if (c < s.end)
        sum.v = dot_weights16(l, c, dot_seen(c, s), f, sum.v);
    return vec_fold_add(sum);
}

/* Row r of the tile that begins at `first`. */
INLINE struct dot_line dot_line_of(const struct dot_item *d, uint32_t first, struct pos_range tile,
                                   uint32_t r, struct dot_form f)
{
    struct dot_line l = {
        .d = d,
        .s = d->room.s + (size_t)r * DOT_TILE,
        .p = d->room.p + (size_t)r * DOT_TILE,
        .first = first,
        .range = pos_range_cut(item_range(d->it, r), tile),
        .row = r,
    };
    if (f.slopes) {
        l.slope = d->it->a->slopes[item_head(d->it, r)];
        l.pos = d->it->seq->start + (d->it->first + r) / item_group(d->it->a);
    }
    return l;
}

/* The largest score so far; the sums so far are scaled by it. */
INLINE void dot_line_scale(struct dot_line *l, struct dot_form f)
{
    const struct dot_scratch *m = &l->d->room;
    const float before = m->max[l->row], most = dot_line_max(l, f);
    if (most > before) {
        const __m512 k = exp2_rough(_mm512_set1_ps((before - most) * l->d->log2_scale));
        float *sum = m->sum + (size_t)l->row * m->dim;
        m->max[l->row] = most;
        m->total[l->row] *= _mm512_cvtss_f32(k);
        for (uint32_t i = 0; i < m->dim; i += 16)
            _mm512_storeu_ps(sum + i, _mm512_mul_ps(_mm512_loadu_ps(sum + i), k));
    }
    l->max = m->max[l->row] * l->d->log2_scale;
}

/* p is 0 in blocks of the tile that are outside of the row's positions. */
INLINE void dot_line_zeros(const struct dot_line *l, struct pos_range tile)
{
    const struct pos_range s = l->range;
    uint32_t begin = s.begin / KERN_BLOCK * KERN_BLOCK;
    uint32_t end = (s.end + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    if (s.begin >= s.end)
        begin = end = tile.end;
    if (begin > tile.begin)
        memset(l->p + (tile.begin - l->first), 0, (begin - tile.begin) * sizeof *l->p);
    if (end < tile.end)
        memset(l->p + (end - l->first), 0, (tile.end - end) * sizeof *l->p);
}

/* Scores to weights, for all rows of a tile that begins at `first`. `tile`: the positions for
 * dot_values, multiples of 2; p is 0 at positions that are masked for a row. Some rows at a time:
 * their maxima do not wait for one another, their weights for none of them. */
INLINE void dot_softmax(const struct dot_item *d, uint32_t first, struct pos_range tile,
                        struct dot_form f)
{
    struct dot_line lines[DOT_LINES];
    for (uint32_t row = 0; row < d->it->n_row; row += DOT_LINES) {
        const uint32_t left = d->it->n_row - row, n = left < DOT_LINES ? left : DOT_LINES;
        for (uint32_t i = 0; i < n; i++) {
            lines[i] = dot_line_of(d, first, tile, row + i, f);
            if (lines[i].range.begin < lines[i].range.end)
                dot_line_scale(&lines[i], f);
        }
        for (uint32_t i = 0; i < n; i++) {
            if (lines[i].range.begin < lines[i].range.end)
                d->room.total[row + i] += dot_line_weights(&lines[i], f);
            dot_line_zeros(&lines[i], tile);
        }
    }
}

static void dot_softmax_typed(const struct dot_item *d, uint32_t first, struct pos_range tile)
{
    const bool int8 = d->it->a->kv_dtype == DT_I8, cap = d->it->a->soft_cap > 0;
    if (d->it->a->slopes)
        dot_softmax(d, first, tile, (struct dot_form){int8, cap, true});
    else if (cap)
        dot_softmax(d, first, tile, (struct dot_form){int8, true, false});
    else if (int8)
        dot_softmax(d, first, tile, (struct dot_form){true, false, false});
    else
        dot_softmax(d, first, tile, (struct dot_form){false, false, false});
}

#endif
#endif
