/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the roundings are those of ref/rms_norm.c, and for int8 of ref/quant_rows.c: the
 * results have the bits of the two operations in sequence. */
#include <math.h>
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/element.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void quantize(const struct norm_rows_args *a, size_t i, const float *row, float r)
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
            quantize(a, i, row, r);
        for (uint32_t c = 0; a->y_dtype != DT_I8 && c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c, row[c] * r * a->w[c]);
    }
}
