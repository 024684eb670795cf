/* SPDX-License-Identifier: Apache-2.0 */
/* A thread packs whole panels. A call covers outputs row_start … row_start + n_out - 1; padding
 * lanes of the last panel and the odd half of the last bf16 pair are zeroed by the call that ends
 * at n_out_total, so that fused matrices packed by several calls are complete after all of them. */
#include "kernels/ref/element.h"
#include "kernels/split.h"
#include "kernels/variants.h"

/* Output o of dst, from src row o - row_start. */
static void pack_row(const struct pack_args *a, uint32_t o)
{
    const size_t from = (size_t)(o - a->row_start) * a->n_in;
    for (uint32_t k = 0; k < a->n_in; k++)
        element_set(a->dst, a->dst_dtype, packed_index(a->dst_dtype, a->n_in, o, k),
                    element_f32(a->src, a->src_dtype, from + k));
}

static void zero_element(const struct pack_args *a, uint32_t o, uint32_t k)
{
    element_set(a->dst, a->dst_dtype, packed_index(a->dst_dtype, a->n_in, o, k), 0);
}

void pack_ref(const struct pack_args *a, const struct kern_exec *x)
{
    uint32_t row_end = a->row_start + a->n_out;
    uint32_t n_k = a->dst_dtype == DT_BF16 ? (a->n_in + 1) / 2 * 2 : a->n_in;
    uint32_t first = a->row_start / KERN_PANEL;
    uint32_t last = (row_end + KERN_PANEL - 1) / KERN_PANEL; /* one past */
    if (a->n_out == 0)
        return;
    struct range panels = split(last - first, x);
    uint32_t begin = (first + (uint32_t)panels.begin) * KERN_PANEL;
    uint32_t end = (first + (uint32_t)panels.end) * KERN_PANEL;
    for (uint32_t o = begin; o < end; o++) {
        if (o >= a->row_start && o < row_end) {
            pack_row(a, o);
            if (n_k != a->n_in)
                zero_element(a, o, a->n_in);
        } else if (o >= a->n_out_total) {
            for (uint32_t k = 0; k < n_k; k++)
                zero_element(a, o, k);
        }
    }
}
