/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of ops_streams.h on 16 lanes; order: ref/streams.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_STREAMS_H
#define QUIRE_KERNELS_WIDE_STREAMS_H
#include "kernels/tiling/split.h"
#include "kernels/tiling/streams.h"
#include "kernels/wide/rms_norm.h"
#ifdef VEC_SUMS

INLINE void wide_stream_match(const struct stream_match_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *from = a->x + i * a->x_stride;
        const struct vec of = vec_set(sqrtf(wide_square_sum(from, a->n_col) / (float)a->n_col));
        for (uint32_t j = 0; j < a->n_part; j++) {
            float *s = a->s + i * a->s_stride + (size_t)j * a->n_col;
            const float mean = wide_square_sum(s, a->n_col) / (float)a->n_col;
            const struct vec own =
                vec_set(sqrtf(mean < KERN_STREAM_LEAST ? KERN_STREAM_LEAST : mean));
            for (uint32_t c = 0; c < a->n_col; c += 16) {
                const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
                vec_store_n(s + c, vec_div(vec_mul(vec_load_n(s + c, n), of), own), n);
            }
        }
    }
}

/* Row i by the factors `by`, of n streams. */
INLINE void stream_predict_row(const struct stream_args *a, size_t i, const float *by,
                               const uint32_t n)
{
    float *x = a->x + i * a->x_stride, *s = a->s + i * a->s_stride;
    for (uint32_t c = 0; c < a->n_col; c += 16) {
        const uint32_t left = a->n_col - c < 16 ? a->n_col - c : 16;
        struct vec from[KERN_STREAMS_MAX];
        UNROLL
        for (uint32_t j = 0; j < n; j++)
            from[j] = vec_load_n((j ? s + (size_t)j * a->n_col : x) + c, left);
        UNROLL
        for (uint32_t j = 0; j < n; j++) {
            struct vec sum = vec_mul(vec_set(by[j * n]), from[0]);
            UNROLL
            for (uint32_t k = 1; k < n; k++)
                sum = vec_fma(vec_set(by[j * n + k]), from[k], sum);
            sum = vec_add(from[j], sum);
            vec_store_n(s + (size_t)j * a->n_col + c, sum, left);
            if (j == 0)
                vec_store_n(x + c, sum, left);
        }
    }
}

INLINE void wide_stream_predict(const struct stream_predict_args *args, const struct kern_exec *x)
{
    const struct stream_args *a = &args->by;
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float by[KERN_STREAMS_MAX * KERN_STREAMS_MAX] = {0};
        stream_factors(by, a->n * a->n, a->w, a->scores + i * a->scores_stride, a->n);
        if (a->n == 4)
            stream_predict_row(a, i, by, 4);
        else if (a->n == 3)
            stream_predict_row(a, i, by, 3);
        else
            stream_predict_row(a, i, by, 2);
    }
}

INLINE void wide_stream_correct(const struct stream_correct_args *args, const struct kern_exec *x)
{
    const struct stream_args *a = &args->by;
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float by[KERN_STREAMS_MAX] = {0}, *x_i = a->x + i * a->x_stride;
        stream_factors(by, a->n, a->w, a->scores + i * a->scores_stride, a->n);
        for (uint32_t c = 0; c < a->n_col; c += 16) {
            const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
            float *s = a->s + i * a->s_stride + c;
            const struct vec predicted = vec_load_n(s, n);
            const struct vec d = vec_sub(vec_load_n(x_i + c, n), predicted);
            struct vec first = vec_fma(d, vec_set(by[0] + 1.0f), predicted);
            vec_store_n(x_i + c, first, n);
            if (args->scale)
                first = vec_mul(first, vec_load_n(args->scale + c, n));
            vec_store_n(s, first, n);
            for (uint32_t j = 1; j < a->n; j++) {
                s += a->n_col;
                vec_store_n(s, vec_fma(d, vec_set(by[j] + 1.0f), vec_load_n(s, n)), n);
            }
        }
    }
}

/* The mean of a row, or of the squares of its differences from it. */
INLINE float sparse_mean(const float *row, uint32_t n_col, struct vec mean, const bool squares)
{
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < n_col; c += 16) {
        const uint32_t n = n_col - c < 16 ? n_col - c : 16;
        const struct vec v = vec_load_n(row + c, n);
        const struct vec d = vec_sub(v, mean);
        const struct vec next = squares ? vec_fma(d, d, sum) : vec_add(sum, v);
        sum = n == 16 ? next : vec_first(n, next, sum);
    }
    return vec_fold_add(sum) / (float)n_col;
}

INLINE void wide_sparse_gate(const struct sparse_gate_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    const struct vec zero = vec_set(0);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float *row = a->x + i * a->x_stride;
        const float mean = sparse_mean(row, a->n_col, zero, false);
        const float variance = sparse_mean(row, a->n_col, vec_set(mean), true);
        const struct vec t = vec_set(mean + sqrtf(variance) * a->cutoff);
        for (uint32_t c = 0; c < a->n_col; c += 16) {
            const uint32_t n = a->n_col - c < 16 ? a->n_col - c : 16;
            const struct vec y = vec_sub(vec_load_n(row + c, n), t);
            vec_store_n(row + c, vec_if_above(zero, y, zero, y), n);
        }
    }
}

#endif
#endif
