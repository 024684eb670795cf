/* SPDX-License-Identifier: Apache-2.0 */
/* scale = max |x| / 127, q = x * (127 / max |x|) in f32 to the nearest integer, ties to even;
 * non-finite and tiny vectors: int8.h. */
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void quant_rows_ref(const struct quant_rows_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *from = a->x + i * a->x_stride;
        int8_t *to = a->q + i * a->q_stride;
        struct int8_scale s = int8_scale_of(from, a->n_col);
        a->rows[i] = (struct quant_row){.scale = s.scale};
        for (uint32_t c = 0; c < int8_k(a->n_col); c++) {
            const uint32_t place = a->order && c < a->n_col ? a->order[c] : c;
            to[c] = c < a->n_col ? int8_of(from[place], s.inverse) : 0;
            a->rows[i].sum += to[c];
        }
        for (uint32_t c = 0; a->sums && c < int8_k(a->n_col); c++) {
            int16_t *sum = a->sums + (i * a->q_stride + c) / KERN_INT8_SUM;
            *sum = (int16_t)((c % KERN_INT8_SUM ? *sum : 0) + to[c]);
        }
    }
}
