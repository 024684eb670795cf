/* SPDX-License-Identifier: Apache-2.0 */
/* scale = max |x| / 448, q = x * (448 / max |x|) in f32 to the nearest e4m3, ties to even; with a
 * scale that is given q = x * (1 / scale), at most 448; non-finite and tiny vectors: fp8.h. */
#include "kernels/ops/e4m3.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void quant_rows_fp8_ref(const struct quant_rows_fp8_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *from = a->x + i * a->x_stride;
        uint8_t *to = a->q + i * a->q_stride;
        float most = 0;
        for (uint32_t c = 0; c < a->n_col; c++)
            most = int8_most(most, from[c]);
        const struct fp8_scale s = fp8_scale(most, a->scale);
        a->rows[i] = (struct quant_row){.scale = s.scale};
        for (uint32_t c = 0; c < int8_k(a->n_col); c++) {
            const float y = c < a->n_col ? from[c] * s.inverse : 0;
            to[c] = isnan(y) ? 0 : f32_to_e4m3(y);
        }
    }
}
