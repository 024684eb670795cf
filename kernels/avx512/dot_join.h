/* SPDX-License-Identifier: Apache-2.0 */
/* dot_join - join of the partial results of a row's splits, and store of a complete row. See
 * attention_dot.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_AVX512_DOT_JOIN_H
#define QUIRE_KERNELS_AVX512_DOT_JOIN_H
#include <stdbool.h>
#include "kernels/avx512/dot_item.h"
#include "kernels/avx512/exp2.h"
#include "kernels/wide/exp.h"
#ifdef __AVX512BF16__

#define LOG2_E 0x1.715476p+0f

/* Columns c … c + 31 of a row's sums in their order; dot_pairs has another for bf16. */
INLINE void dot_column_order(const struct item *it, const float *sum, struct vec out[2])
{
    const __m512i at = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512 a = _mm512_loadu_ps(sum), b = _mm512_loadu_ps(sum + 16);
    out[0].v = a;
    out[1].v = b;
    if (it->a->kv_dtype != DT_BF16)
        return;
    out[0].v = _mm512_permutex2var_ps(a, at, b);
    out[1].v = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(8)), b);
}

/* What the scores of a split are multiplied with to be those of the formula. */
INLINE float dot_unit(const struct attention_args *a)
{
    return a->soft_cap > 0 || a->slopes ? 1 : a->scale;
}

/* The softmax's sum of row r, including its head's sink. */
static float dot_total(const struct item *it, uint32_t r, const struct partial_row *of)
{
    const struct attention_args *a = it->a;
    const float max = of->max * dot_unit(a);
    if (!a->sinks)
        return of->total;
    return of->total + vec_fold_max(vec_exp(vec_set(a->sinks[item_head(it, r)] - max)));
}

/* Row r of the item is complete: store it to out. */
static void dot_store(const struct item *it, uint32_t r, const struct partial_row *of)
{
    const struct vec zero = vec_set(0), inverse = vec_set(1.0f / dot_total(it, r, of));
    const uint32_t dim = it->a->head_dim;
    const size_t at = item_at(it, r, it->a->out_stride);
    for (uint32_t c = 0; c < dim; c += 32) {
        struct vec y[2];
        dot_column_order(it, of->sum + c, y);
        for (uint32_t i = 0; i < 2 && c + 16 * i < dim; i++) {
            uint32_t left = dim - c - 16 * i;
            item_store(it, at + c + 16 * i, vec_add(vec_mul(y[i], inverse), zero),
                       left < 16 ? left : 16);
        }
    }
}

INLINE float dot_scale(const struct attention_args *a) /* of a score, before 2^ */
{
    return LOG2_E * dot_unit(a);
}

/* Join the next split's partial result of a row with the previous ones. */
static void dot_join(const struct attention_args *a, float *to, const struct partial_row *from)
{
    const uint32_t dim = partial_dim(a->head_dim);
    const float max = to[dim], total = to[dim + 1];
    if (from->total == 0) /* the row has no position in the split */
        return;
    if (total == 0) {
        memcpy(to, from->sum, dim * sizeof *to);
        to[dim] = from->max;
        to[dim + 1] = from->total;
        return;
    }
    const bool above = from->max > max;
    const float apart = above ? max - from->max : from->max - max;
    const __m512 f = exp2_rough(_mm512_set1_ps(apart * dot_scale(a)));
    for (uint32_t i = 0; i < dim; i += 16) {
        const __m512 x = _mm512_loadu_ps(to + i), y = _mm512_loadu_ps(from->sum + i);
        _mm512_storeu_ps(to + i, above ? _mm512_fmadd_ps(x, f, y) : _mm512_fmadd_ps(y, f, x));
    }
    const __m512 x = _mm512_set1_ps(total), y = _mm512_set1_ps(from->total);
    to[dim + 1] = _mm512_cvtss_f32(above ? _mm512_fmadd_ps(x, f, y) : _mm512_fmadd_ps(y, f, x));
    to[dim] = above ? from->max : max;
}

INLINE struct partial_row dot_row_of(const struct dot_item *d, uint32_t r)
{
    return (struct partial_row){d->room.sum + (size_t)r * d->room.dim, d->room.max[r],
                                d->room.total[r]};
}

/* Store the rows of a finished split: to `out` if it is the only one, else join them with the
 * partial results in `to`, or start these. */
static void dot_split_end(const struct dot_item *d, float *to, bool first, bool last)
{
    const struct item *it = d->it;
    const size_t stride = partial_stride(it->a->head_dim);
    for (uint32_t r = 0; r < it->n_row; r++) {
        struct partial_row row = dot_row_of(d, r);
        float *part = to + r * stride;
        if (!(first && last)) {
            if (first)
                part[d->room.dim + 1] = 0;
            dot_join(it->a, part, &row);
            row = (struct partial_row){part, part[d->room.dim], part[d->room.dim + 1]};
        }
        if (last)
            dot_store(it, r, &row);
    }
}

static void dot_row_join(const struct item *it, uint32_t r, float *parts, uint32_t n_split)
{
    const uint32_t dim = partial_dim(it->a->head_dim);
    const size_t step = item_split_floats(it);
    float *to = parts + r * it->sum_stride, *from = to;
    for (uint32_t i = 1; i < n_split; i++) {
        from += step;
        dot_join(it->a, to, &(struct partial_row){from, from[dim], from[dim + 1]});
    }
    dot_store(it, r, &(struct partial_row){to, to[dim], to[dim + 1]});
}

#endif
#endif
