/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the roundings are those of ref/rms_norm.c, and for bytes of ref/quant_rows.c,
 * ref/quant_rows_fp8.c and ref/quant_rows_fp8_block.c: the results have the bits of the two
 * operations in sequence. */
#include <math.h>
#include "kernels/ops/e4m3.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/element.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void to_int8(const struct norm_rows_args *a, size_t i, const float *row, float r)
{
    int8_t *q = (int8_t *)a->y + i * a->y_stride;
    float most = 0;
    for (uint32_t c = 0; c < a->n_col; c++)
        most = int8_most(most, row[c] * r * a->w[c]);
    struct int8_scale s = int8_scale(most);
    a->quant[i] = (struct quant_row){.scale = s.scale};
    for (uint32_t c = 0; c < int8_k(a->n_col); c++) {
        q[c] = c < a->n_col ? int8_of(row[c] * r * a->w[c], s.inverse) : 0;
        a->quant[i].sum += q[c];
    }
}

/* Columns from `begin` on, those of one scale, which it returns: theirs, or a->scale. */
static float e4m3_columns(const struct norm_rows_args *a, uint8_t *q, const float *row, float r,
                          struct range columns)
{
    float most = 0;
    for (size_t c = columns.begin; c < columns.end; c++)
        most = int8_most(most, row[c] * r * a->w[c]);
    const struct fp8_scale s = fp8_scale(most, a->scales ? 0 : a->scale);
    for (size_t c = columns.begin; c < columns.end; c++) {
        const float y = row[c] * r * a->w[c] * s.inverse;
        q[c] = isnan(y) ? 0 : f32_to_e4m3(y);
    }
    return s.scale;
}

static void to_e4m3(const struct norm_rows_args *a, size_t i, const float *row, float r)
{
    uint8_t *q = (uint8_t *)a->y + i * a->y_stride;
    const struct range all = {0, a->n_col};
    if (!a->scales)
        a->quant[i] = (struct quant_row){.scale = e4m3_columns(a, q, row, r, all)};
    for (size_t b = 0; a->scales && b < fp8_n_block(a->n_col); b++) {
        const size_t begin = b * KERN_FP8_BLOCK, end = begin + KERN_FP8_BLOCK;
        const struct range block = {begin, end < all.end ? end : all.end};
        a->scales[i * a->scale_stride + b] = e4m3_columns(a, q, row, r, block);
    }
    memset(q + a->n_col, 0, int8_k(a->n_col) - a->n_col);
}

void norm_rows_ref(const struct norm_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        size_t at = a->rows ? a->rows[i] : i;
        float *row = a->x + at * a->x_stride, lane[16] = {0};
        for (uint32_t c = 0; a->add && c < a->n_col; c++)
            row[c] += element_f32(a->add, a->add_dtype, at * a->add_stride + c);
        for (uint32_t c = 0; c < a->n_col; c++)
            lane[c % 16] = fmaf(row[c], row[c], lane[c % 16]);
        float r = 1.0f / sqrtf(fold16(lane) / (float)a->n_col + a->eps);
        if (a->y_dtype == DT_I8)
            to_int8(a, i, row, r);
        else if (a->y_dtype == DT_F8_E4M3)
            to_e4m3(a, i, row, r);
        else
            for (uint32_t c = 0; c < a->n_col; c++)
                element_set(a->y, a->y_dtype, i * a->y_stride + c, row[c] * r * a->w[c]);
    }
}
