/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dtype.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void weigh_floats(const struct moe_weigh_args *a, size_t to, size_t from, float weight)
{
    for (uint32_t c = 0; c < a->n_col; c++)
        switch (a->dtype) {
        case DT_BF16: {
            const float v = bf16_to_f32(((const uint16_t *)a->x)[from + c]);
            ((uint16_t *)a->y)[to + c] = f32_to_bf16(v * weight);
            break;
        }
        case DT_F16: {
            const float v = f16_to_f32(((const uint16_t *)a->x)[from + c]);
            ((uint16_t *)a->y)[to + c] = f32_to_f16(v * weight);
            break;
        }
        default:
            ((float *)a->y)[to + c] = ((const float *)a->x)[from + c] * weight;
        }
}

/* Row r of x to place p of y. */
static void weigh_bytes(const struct moe_weigh_args *a, size_t p, size_t r, float weight)
{
    const uint32_t n = (a->n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    const uint32_t n_block = (a->n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
    for (uint32_t c = 0; a->y != a->x && c < n; c++)
        ((uint8_t *)a->y)[p * a->y_stride + c] = ((const uint8_t *)a->x)[r * a->x_stride + c];
    if (a->y_rows)
        a->y_rows[p] = (struct quant_row){a->x_rows[r].scale * weight, a->x_rows[r].sum};
    for (uint32_t b = 0; a->y_scales && b < n_block; b++)
        a->y_scales[p * a->y_scale_stride + b] = a->x_scales[r * a->x_scale_stride + b] * weight;
}

void moe_weigh_ref(const struct moe_weigh_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    const bool bytes = a->dtype == DT_I8 || a->dtype == DT_F8_E4M3;
    for (size_t i = rows.begin * a->n_used; i < rows.end * a->n_used; i++) {
        const size_t p = a->places[i], r = a->of_places ? p : i / a->n_used;
        if (bytes)
            weigh_bytes(a, p, r, a->weights[i]);
        else
            weigh_floats(a, p * a->y_stride, r * a->x_stride, a->weights[i]);
    }
}
