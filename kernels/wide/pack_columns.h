/* SPDX-License-Identifier: Apache-2.0 */
/* pack_columns on 16 lanes; definition: ref/pack_columns.c. The outputs of a panel are neighbours
 * in src, so nothing is transposed: f32 is a copy, bf16 lays two rows of src side by side.
 * Threads: as ops.h; a thread packs whole panels. */
#ifndef QUIRE_KERNELS_WIDE_PACK_COLUMNS_H
#define QUIRE_KERNELS_WIDE_PACK_COLUMNS_H
#include "kernels/wide/store.h"
#ifdef VEC_SUMS

/* Outputs o … o + 15 for input k; what is beyond the matrix is 0. */
INLINE struct vec pack_columns_at(const struct pack_columns_args *a, size_t o, uint32_t k)
{
    if (k >= a->n_in || o >= a->n_out)
        return vec_set(0);
    const uint32_t n = a->n_out - o < 16 ? (uint32_t)(a->n_out - o) : 16;
    return wide_load_at(a->src, a->src_dtype, k * a->src_stride + o, n);
}

INLINE void pack_columns_panel(const struct pack_columns_args *a, size_t panel)
{
    const bool bf16 = a->dst_dtype == DT_BF16;
    const size_t n_k = bf16 ? ((size_t)a->n_in + 1) / 2 * 2 : a->n_in;
    float *f32 = (float *)a->dst + panel * n_k * KERN_PANEL, pair[32];
    uint16_t *half = (uint16_t *)a->dst + panel * n_k * KERN_PANEL;
    for (uint32_t k = 0; k < n_k; k += bf16 ? 2 : 1)
        for (uint32_t o = 0; o < KERN_PANEL; o += 16) {
            const struct vec v = pack_columns_at(a, panel * KERN_PANEL + o, k);
            if (!bf16) {
                vec_store(f32 + (size_t)k * KERN_PANEL + o, v);
                continue;
            }
            vec_store_pairs(pair, v, pack_columns_at(a, panel * KERN_PANEL + o, k + 1));
            vec_store_bf16_n(half + (size_t)k * KERN_PANEL + 2 * o, vec_load(pair), 16);
            vec_store_bf16_n(half + (size_t)k * KERN_PANEL + 2 * o + 16, vec_load(pair + 16), 16);
        }
}

INLINE void wide_pack_columns(const struct pack_columns_args *a, const struct kern_exec *x)
{
    const struct range panels = split(((size_t)a->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    for (size_t p = panels.begin; p < panels.end; p++)
        pack_columns_panel(a, p);
}

#endif
#endif
