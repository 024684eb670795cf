/* SPDX-License-Identifier: Apache-2.0 */
/* pack on 16 elements of a row at a time; layout: ops.h, rules: ref/pack.c.
 *
 * A panel goes 16 elements of K at a time through all of its outputs, so that the 4 KiB of panel
 * written in between stay in the first-level cache. Stores are of 4 bytes (an f32, a bf16 pair)
 * or 2 (an f16), one panel row apart; that is still far above the speed at which weights arrive.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_PACK_H
#define QUIRE_KERNELS_WIDE_PACK_H
#include "kernels/wide/element.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* Rounded to f16 or bf16. */
INLINE void wide_round(uint16_t cells[16], struct vec v, enum dtype dtype)
{
    if (dtype == DT_F16)
        vec_store_f16(cells, v);
    else
        vec_store_bf16_n(cells, v, 16);
}

/* Elements k … k + n - 1 (n <= 16, k even) of one output, into lane `lane` of the panel. */
INLINE void wide_place(char *panel, enum dtype dtype, struct vec v, uint32_t k, uint32_t n)
{
    float whole[16];
    uint16_t cells[16];
    if (dtype == DT_F32) {
        vec_store(whole, v);
        for (uint32_t i = 0; i < n; i++)
            ((float *)(void *)panel)[(size_t)(k + i) * KERN_PANEL] = whole[i];
        return;
    }
    wide_round(cells, v, dtype);
    uint16_t *to = (uint16_t *)(void *)panel + (size_t)k * KERN_PANEL;
    if (dtype == DT_F16)
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)i * KERN_PANEL] = cells[i];
    else
        for (uint32_t i = 0; i < n; i += 2) /* an odd n ends with a pair whose second half is 0 */
            memcpy(to + (size_t)i * KERN_PANEL, cells + i, 4);
}

/* One panel: outputs that src holds, and zeros past the last output of dst. */
INLINE void wide_pack_panel(const struct pack_args *a, char *panel, uint32_t first)
{
    const size_t element = a->src_dtype == DT_F32 ? 4 : 2;
    const size_t lane_bytes = a->dst_dtype == DT_F16 ? 2 : 4;
    for (uint32_t k = 0; k < a->n_in; k += 16) {
        uint32_t n = a->n_in - k < 16 ? a->n_in - k : 16;
        for (uint32_t lane = 0; lane < KERN_PANEL; lane++) {
            uint32_t o = first + lane;
            struct vec v = vec_set(0);
            if (o >= a->row_start && o < a->row_start + a->n_out) {
                size_t at = (size_t)(o - a->row_start) * a->n_in + k;
                v = wide_element((const char *)a->src + at * element, a->src_dtype, n);
            } else if (o < a->n_out_total) {
                continue; /* another call's */
            }
            wide_place(panel + lane * lane_bytes, a->dst_dtype, v, k, n);
        }
    }
}

INLINE void wide_pack(const struct pack_args *a, const struct kern_exec *x)
{
    const size_t n_k = a->dst_dtype == DT_BF16 ? ((size_t)a->n_in + 1) / 2 * 2 : a->n_in;
    const size_t panel_bytes = n_k * KERN_PANEL * (a->dst_dtype == DT_F32 ? 4 : 2);
    const uint32_t first = a->row_start / KERN_PANEL;
    const uint32_t end = (a->row_start + a->n_out + KERN_PANEL - 1) / KERN_PANEL;
    if (a->n_out == 0)
        return;
    struct range panels = split(end - first, x);
    for (size_t p = first + panels.begin; p < first + panels.end; p++)
        wide_pack_panel(a, (char *)a->dst + p * panel_bytes, (uint32_t)p * KERN_PANEL);
}

#endif
#endif
