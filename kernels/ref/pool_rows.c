/* SPDX-License-Identifier: Apache-2.0 */
/* Definition and order: ops_device.h. */
#include <math.h>
#include <string.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

/* The sequence that has the row. */
static const struct attention_seq *sequence_of(const struct pool_rows_args *a, uint32_t row)
{
    uint32_t at = 0, n = a->n_seq;
    while (n > 1) {
        const uint32_t half = n / 2;
        at += a->seqs[at + half].row <= row ? half : 0;
        n -= half;
    }
    return &a->seqs[at];
}

/* x is the k-th row of the sequence, from 0 on. */
static void take_row(const struct pool_rows_args *a, float *y, const float *x, uint32_t k)
{
    if (a->kind == POOL_ROWS_MAX)
        for (uint32_t c = 0; c < a->n_col; c++)
            y[c] = x[c] > y[c] || x[c] != x[c] ? x[c] : y[c];
    else if (a->kind == POOL_ROWS_WEIGHTED_MEAN)
        for (uint32_t c = 0; c < a->n_col; c++)
            y[c] = fmaf((float)(k + 1), x[c], y[c]);
    else
        for (uint32_t c = 0; c < a->n_col; c++)
            y[c] += x[c];
}

static void all_rows(const struct pool_rows_args *a, float *y, const struct attention_seq *q)
{
    const float *x = a->x + q->row * a->x_stride;
    const float n = (float)q->n_query;
    const uint64_t sum = (uint64_t)q->n_query * (q->n_query + 1) / 2; /* of the weights */
    const float by = a->kind == POOL_ROWS_WEIGHTED_MEAN   ? (float)sum
                     : a->kind == POOL_ROWS_MEAN_SQRT_LEN ? sqrtf(n)
                                                          : n;
    if (a->kind == POOL_ROWS_MAX)
        memcpy(y, x, a->n_col * sizeof *y);
    else
        memset(y, 0, a->n_col * sizeof *y);
    for (uint32_t k = 0; k < q->n_query; k++)
        take_row(a, y, x + k * a->x_stride, k);
    for (uint32_t c = 0; a->kind != POOL_ROWS_MAX && c < a->n_col; c++)
        y[c] /= by;
}

void pool_rows_ref(const struct pool_rows_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float *y = a->y + i * a->y_stride;
        if (a->kind != POOL_ROWS_ONE)
            all_rows(a, y, sequence_of(a, a->rows[i]));
        else
            memcpy(y, a->x + a->rows[i] * a->x_stride, a->n_col * sizeof *y);
    }
}
