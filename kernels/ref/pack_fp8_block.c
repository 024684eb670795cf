/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, fused matrices and the padding of the last panel: as ref/pack.c. A group is within one
 * panel, so one thread packs all of it. */
#include "kernels/ops/int8_layout.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

/* Output o, from src row o - row_start; a row of zeros when src has no such row. */
static void pack_row(const void *args, uint32_t o, bool present)
{
    const struct pack_fp8_block_args *a = args;
    const size_t n_block = fp8_n_block(a->n_in), row = present ? o - a->row_start : 0;
    uint8_t *panel = (uint8_t *)a->dst + o / KERN_PANEL * fp8_block_panel_bytes(a->n_in);
    float *scales = (float *)(void *)(panel + int8_panel_scales_at(a->n_in));
    for (uint32_t k = 0; k < int8_k(a->n_in); k++)
        panel[int8_index(o, k)] = present && k < a->n_in ? a->q[row * a->n_in + k] : 0;
    for (size_t b = 0; o % KERN_GATE_INTERLEAVE == 0 && b < n_block; b++)
        scales[o % KERN_PANEL / KERN_GATE_INTERLEAVE * n_block + b] =
            present ? a->scales[row * n_block + b] : 0;
}

void pack_fp8_block_ref(const struct pack_fp8_block_args *a, const struct kern_exec *x)
{
    ref_pack(REF_PACK(a, pack_row), x);
}
