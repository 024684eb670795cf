/* SPDX-License-Identifier: Apache-2.0 */
/* An output's scale is that of its row as an int8 vector (int8.h). Threads, fused matrices and the
 * padding of the last panel: as ref/pack.c. */
#include "kernels/kern.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/int8.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* Output o, from src row o - row_start; a row of zeros when src has no such row. */
static void pack_row(const void *args, uint32_t o, bool present)
{
    const struct pack_int8_args *a = args;
    uint8_t *panel = (uint8_t *)a->dst + o / KERN_PANEL * int8_panel_bytes(a->n_in);
    const size_t from = present ? (size_t)(o - a->row_start) * a->n_in : 0;
    float most = 0;
    for (uint32_t k = 0; present && k < a->n_in; k++) {
        float w = fabsf(element_f32(a->src, a->src_dtype, from + k));
        if (isnan(w) || w > most)
            most = w;
    }
    struct int8_scale s = int8_scale(most);
    for (uint32_t k = 0; k < int8_k(a->n_in); k++) {
        int q = present && k < a->n_in
                    ? int8_of(element_f32(a->src, a->src_dtype, from + k), s.inverse)
                    : 0;
        panel[int8_index(o, k)] = (uint8_t)(q + INT8_ZERO);
    }
    element_set(panel + int8_panel_scales_at(a->n_in), DT_F32, o % KERN_PANEL, s.scale);
}

static void set_rows(const struct pack_int8_args *a, const struct kern_exec *x)
{
    const struct packed w = {
        .data = a->dst,
        .n_out = a->n_out_total,
        .n_in = a->n_in,
        .dtype = DT_I8,
    };
    const struct range rows = split(a->n_out, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        kern_int8_set(&w, a->row_start + (uint32_t)i, a->q + i * a->n_in, a->scales[i]);
}

void pack_int8_ref(const struct pack_int8_args *a, const struct kern_exec *x)
{
    if (a->q) {
        set_rows(a, x);
        return;
    }
    ref_pack(REF_PACK(a, pack_row), x);
}
