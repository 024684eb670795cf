/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tiling/streams.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float mean_square(const float *x, uint32_t n)
{
    float lane[16] = {0};
    for (uint32_t c = 0; c < n; c++)
        lane[c % 16] = fmaf(x[c], x[c], lane[c % 16]);
    return fold16(lane) / (float)n;
}

void stream_match_ref(const struct stream_match_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float of = sqrtf(mean_square(a->x + i * a->x_stride, a->n_col));
        for (uint32_t j = 0; j < a->n_part; j++) {
            float *s = a->s + i * a->s_stride + (size_t)j * a->n_col;
            const float mean = mean_square(s, a->n_col);
            const float own = sqrtf(mean < KERN_STREAM_LEAST ? KERN_STREAM_LEAST : mean);
            for (uint32_t c = 0; c < a->n_col; c++)
                s[c] = s[c] * of / own;
        }
    }
}

void stream_predict_ref(const struct stream_predict_args *args, const struct kern_exec *x)
{
    const struct stream_args *a = &args->by;
    const struct range rows = split(a->n_row, x);
    const uint32_t n = a->n;
    for (size_t i = rows.begin; i < rows.end; i++) {
        float by[KERN_STREAMS_MAX * KERN_STREAMS_MAX] = {0}, from[KERN_STREAMS_MAX];
        float *first = a->x + i * a->x_stride, *s = a->s + i * a->s_stride;
        stream_factors(by, n * n, a->w, a->scores + i * a->scores_stride, n);
        for (uint32_t c = 0; c < a->n_col; c++) {
            for (uint32_t j = 0; j < n; j++)
                from[j] = j ? s[(size_t)j * a->n_col + c] : first[c];
            for (uint32_t j = 0; j < n; j++) {
                float sum = by[j * n] * from[0];
                for (uint32_t k = 1; k < n; k++)
                    sum = fmaf(by[j * n + k], from[k], sum);
                s[(size_t)j * a->n_col + c] = from[j] + sum;
            }
            first[c] = s[c];
        }
    }
}

void stream_correct_ref(const struct stream_correct_args *args, const struct kern_exec *x)
{
    const struct stream_args *a = &args->by;
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float by[KERN_STREAMS_MAX] = {0};
        float *first = a->x + i * a->x_stride, *s = a->s + i * a->s_stride;
        stream_factors(by, a->n, a->w, a->scores + i * a->scores_stride, a->n);
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float d = first[c] - s[c];
            for (uint32_t j = 0; j < a->n; j++) {
                float *h = s + (size_t)j * a->n_col + c;
                *h = fmaf(d, by[j] + 1.0f, *h);
            }
            first[c] = s[c];
            s[c] = args->scale ? first[c] * args->scale[c] : first[c];
        }
    }
}

void sparse_gate_ref(const struct sparse_gate_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float lane[16] = {0}, squares[16] = {0}, *row = a->x + i * a->x_stride;
        for (uint32_t c = 0; c < a->n_col; c++)
            lane[c % 16] += row[c];
        const float mean = fold16(lane) / (float)a->n_col;
        for (uint32_t c = 0; c < a->n_col; c++)
            squares[c % 16] = fmaf(row[c] - mean, row[c] - mean, squares[c % 16]);
        const float t = mean + sqrtf(fold16(squares) / (float)a->n_col) * a->cutoff;
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float y = row[c] - t;
            row[c] = y < 0 ? 0 : y;
        }
    }
}
