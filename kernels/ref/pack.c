/* SPDX-License-Identifier: Apache-2.0 */
/* A thread packs whole panels. A call covers outputs row_start … row_start + n_out - 1; padding
 * lanes of the last panel and the odd half of the last bf16 pair are zeroed by the call that ends
 * at n_out_total, so that fused matrices packed by several calls are complete after all of them. */
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* Output o of dst, from src row o - row_start, or zeros. */
static void pack_row(const void *args, uint32_t o, bool present)
{
    const struct pack_args *a = args;
    const uint32_t n_k = a->dst_dtype == DT_BF16 ? (a->n_in + 1) / 2 * 2 : a->n_in;
    for (uint32_t k = 0; k < n_k; k++) {
        const size_t from = (size_t)(o - a->row_start) * a->n_in + k;
        element_set(a->dst, a->dst_dtype, packed_index(a->dst_dtype, a->n_in, o, k),
                    present && k < a->n_in ? element_f32(a->src, a->src_dtype, from) : 0);
    }
}

void pack_ref(const struct pack_args *a, const struct kern_exec *x)
{
    ref_pack(REF_PACK(a, pack_row), x);
}
