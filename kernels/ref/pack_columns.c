/* SPDX-License-Identifier: Apache-2.0 */
/* W[o,k] = src[k,o], in the packed layout. A thread packs whole panels; what pads the last panel
 * and the last bf16 pair is 0. */
#include <stdbool.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void pack_columns_ref(const struct pack_columns_args *a, const struct kern_exec *x)
{
    const uint32_t n_panel = (a->n_out + KERN_PANEL - 1) / KERN_PANEL;
    const uint32_t n_k = a->dst_dtype == DT_BF16 ? (a->n_in + 1) / 2 * 2 : a->n_in;
    const struct range panels = split(n_panel, x);
    const uint32_t end = (uint32_t)panels.end * KERN_PANEL;
    for (uint32_t o = (uint32_t)panels.begin * KERN_PANEL; o < end; o++)
        for (uint32_t k = 0; k < n_k; k++) {
            const bool present = o < a->n_out && k < a->n_in;
            const float f = present ? element_f32(a->src, a->src_dtype, k * a->src_stride + o) : 0;
            element_set(a->dst, a->dst_dtype, packed_index(a->dst_dtype, a->n_in, o, k), f);
        }
}
