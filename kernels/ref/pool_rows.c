/* SPDX-License-Identifier: Apache-2.0 */
/* Definition and order: ops_device.h. */
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

static void mean_rows(const struct pool_rows_args *a, float *y, const struct attention_seq *q)
{
    memset(y, 0, a->n_col * sizeof *y);
    for (uint32_t r = q->row; r < q->row + q->n_query; r++) {
        const float *row = a->x + r * a->x_stride;
        for (uint32_t c = 0; c < a->n_col; c++)
            y[c] += row[c];
    }
    for (uint32_t c = 0; c < a->n_col; c++)
        y[c] /= (float)q->n_query;
}

void pool_rows_ref(const struct pool_rows_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        float *y = a->y + i * a->y_stride;
        if (a->mean)
            mean_rows(a, y, sequence_of(a, a->rows[i]));
        else
            memcpy(y, a->x + a->rows[i] * a->x_stride, a->n_col * sizeof *y);
    }
}
