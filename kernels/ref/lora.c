/* SPDX-License-Identifier: Apache-2.0 */
/* Definition and order: ops_lora.h. */
#include <math.h>
#include "kernels/ops/ops_lora.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void shrink_row(const struct lora_shrink_args *a, const struct lora_factors *f, size_t row)
{
    float *t = a->t + row * a->t_stride;
    for (uint32_t i = 0; i < f->n_part; i++)
        for (uint32_t j = 0; j < f->parts[i].rank; j++) {
            float lane[16] = {0};
            for (uint32_t k = 0; k < f->n_in; k++)
                lane[k % 16] = fmaf(element_f32(a->x, a->x_dtype, row * a->x_stride + k),
                                    element_f32(f->parts[i].a, f->dtype, (size_t)j * f->n_in + k),
                                    lane[k % 16]);
            *t++ = fold16(lane) * f->parts[i].scale;
        }
}

void lora_shrink_ref(const struct lora_shrink_args *a, const struct kern_exec *x)
{
    for (uint32_t g = 0; g < a->n_group; g++) {
        const struct range rows = split(a->groups[g].n_row, x);
        for (size_t i = rows.begin; i < rows.end; i++)
            shrink_row(a, a->groups[g].factors, a->groups[g].rows[i] - a->first);
    }
}

static void expand_row(const struct lora_expand_args *a, const struct lora_factors *f, size_t row)
{
    const float *t = a->t + row * a->t_stride;
    for (uint32_t i = 0; i < f->n_part; t += f->parts[i++].rank) {
        const struct lora_part *p = &f->parts[i];
        float *y = a->y + row * a->y_stride + p->col;
        for (uint32_t c = 0; c < p->n_out; c++) {
            float sum = 0;
            for (uint32_t j = 0; j < p->rank; j++)
                sum = fmaf(t[j], element_f32(p->b, f->dtype, lora_b_index(p->rank, j, c)), sum);
            y[c] += sum;
        }
    }
}

void lora_expand_ref(const struct lora_expand_args *a, const struct kern_exec *x)
{
    for (uint32_t g = 0; g < a->n_group; g++) {
        const struct range rows = split(a->groups[g].n_row, x);
        for (size_t i = rows.begin; i < rows.end; i++)
            expand_row(a, a->groups[g].factors, a->groups[g].rows[i] - a->first);
    }
}
