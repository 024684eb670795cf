/* SPDX-License-Identifier: Apache-2.0 */
/* Each 128 columns of a row are quantized as quant_rows_fp8 quantizes a row. */
#include "kernels/ops/e4m3.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

/* Columns c … c + n - 1; returns their scale. */
static float quantize(uint8_t *to, const float *from, uint32_t n)
{
    float most = 0;
    for (uint32_t c = 0; c < n; c++)
        most = int8_most(most, from[c]);
    const struct fp8_scale s = fp8_scale(most, 0);
    for (uint32_t c = 0; c < n; c++) {
        const float y = from[c] * s.inverse;
        to[c] = isnan(y) ? 0 : f32_to_e4m3(y);
    }
    return s.scale;
}

void quant_rows_fp8_block_ref(const struct quant_rows_fp8_block_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *from = a->x + i * a->x_stride;
        uint8_t *to = a->q + i * a->q_stride;
        for (uint32_t b = 0; b < fp8_n_block(a->n_col); b++) {
            const uint32_t c = b * KERN_FP8_BLOCK, left = a->n_col - c;
            const uint32_t n = left < KERN_FP8_BLOCK ? left : KERN_FP8_BLOCK;
            a->scales[i * a->scale_stride + b] = quantize(to + c, from + c, n);
        }
        memset(to + a->n_col, 0, int8_k(a->n_col) - a->n_col);
    }
}
