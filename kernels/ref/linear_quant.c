/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,o] = (f32(sum) * scale[o]) * rows[i].scale + bias[o] (+ y[i,o]), sum = sum_k q[i,k] * w[o,k]
 * over integers; f32(sum) is rounded to nearest even. */
#include "kernels/quant_layout.h"
#include "kernels/ref/finish.h"
#include "kernels/split.h"
#include "kernels/variants.h"

static float dot(const struct linear_quant_args *a, size_t i, uint32_t o)
{
    const uint8_t *panel =
        (const uint8_t *)a->w.data + o / KERN_PANEL * quant_panel_bytes(a->w.n_in);
    const int8_t *x = a->x + i * a->x_stride;
    int32_t sum = 0;
    for (uint32_t k = 0; k < a->w.n_in; k++)
        sum += x[k] * (panel[quant_index(o, k)] - QUANT_ZERO);
    return (float)sum * element_f32(panel + quant_scales_at(a->w.n_in), DT_F32, o % KERN_PANEL);
}

void linear_quant_ref(const struct linear_quant_args *a, const struct kern_exec *x)
{
    struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    uint32_t begin = (uint32_t)panels.begin * KERN_PANEL, end = (uint32_t)panels.end * KERN_PANEL;
    const struct finish f = FINISH_OF(a);
    float sum[KERN_PANEL];
    for (size_t i = 0; i < a->n_row; i++)
        for (uint32_t o = begin; o < end && o < a->w.n_out; o += KERN_PANEL) {
            uint32_t n = a->w.n_out - o < KERN_PANEL ? a->w.n_out - o : KERN_PANEL;
            for (uint32_t j = 0; j < n; j++)
                sum[j] = dot(a, i, o + j) * a->rows[i].scale;
            ref_finish(&f, sum, i, o, n);
        }
}
