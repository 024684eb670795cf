/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void embed_ref(const struct embed_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const uint32_t r = a->mod ? a->ids[i] / a->div % a->mod : a->ids[i];
        const uint32_t id = a->limit && r >= a->limit ? 0 : r;
        if (a->ids[i] == KERN_NO_ROW)
            continue;
        for (uint32_t c = 0; c < a->n_col; c++) {
            const size_t at =
                a->packed ? packed_index(a->dtype, a->n_col, id, c) : (size_t)id * a->n_col + c;
            const float v = element_f32(a->table, a->dtype, at) * a->scale;
            float *y = &a->y[i * a->n_col + c];
            *y = a->accumulate ? *y + v : v;
        }
    }
}
