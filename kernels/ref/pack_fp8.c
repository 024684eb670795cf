/* SPDX-License-Identifier: Apache-2.0 */
/* An output's scale is computed from its row (fp8.h), or given with its e4m3 bytes. Threads, fused
 * matrices and the padding of the last panel: as ref/pack.c. */
#include "kernels/ops/e4m3.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/int8.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* Output o, from src row o - row_start; a row of zeros when src has no such row. */
static void pack_row(const void *args, uint32_t o, bool present)
{
    const struct pack_fp8_args *a = args;
    uint8_t *panel = (uint8_t *)a->dst + o / KERN_PANEL * int8_panel_bytes(a->n_in);
    const size_t row = present ? o - a->row_start : 0, from = row * a->n_in;
    float most = 0;
    for (uint32_t k = 0; present && !a->q && k < a->n_in; k++)
        most = int8_most(most, element_f32(a->src, a->src_dtype, from + k));
    struct fp8_scale s = fp8_scale(most, 0);
    if (present && a->q)
        s.scale = a->scales[row];
    for (uint32_t k = 0; k < int8_k(a->n_in); k++) {
        uint8_t q = 0;
        if (present && k < a->n_in && a->q) {
            q = a->q[from + k];
        } else if (present && k < a->n_in) {
            const float y = element_f32(a->src, a->src_dtype, from + k) * s.inverse;
            q = isnan(y) ? 0 : f32_to_e4m3(y);
        }
        panel[int8_index(o, k)] = q;
    }
    element_set(panel + int8_panel_scales_at(a->n_in), DT_F32, o % KERN_PANEL, s.scale);
}

void pack_fp8_ref(const struct pack_fp8_args *a, const struct kern_exec *x)
{
    ref_pack(REF_PACK(a, pack_row), x);
}
