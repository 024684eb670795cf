/* SPDX-License-Identifier: Apache-2.0 */
/* pack_quant on 16 elements of a row at a time; layout: ops_quant.h, rules: ref/pack_quant.c.
 *
 * An output's row is read twice, for its scale and for its bytes; the second time it comes from the
 * cache. The bytes go out in groups of four along K, one line of the panel apart.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_PACK_QUANT_H
#define QUIRE_KERNELS_WIDE_PACK_QUANT_H
#include "kernels/quant_layout.h"
#include "kernels/wide/element.h"
#include "kernels/wide/int8.h"
#ifdef VEC_SUMS

struct source_row {
    const char *p; /* NULL: zeros */
    enum dtype dtype;
    uint32_t n_in;
};

/* Elements k … k + 15; 0 past the end. */
INLINE struct vec source_vec(const struct source_row *r, uint32_t k)
{
    const size_t element = r->dtype == DT_F32 ? 4 : 2;
    if (!r->p || k >= r->n_in)
        return vec_set(0);
    const char *p = r->p + k * element;
    if (r->n_in - k < 16)
        return wide_element(p, r->dtype, r->n_in - k);
    if (r->dtype == DT_F32)
        return vec_load((const float *)(const void *)p);
    const uint16_t *half = (const uint16_t *)(const void *)p;
    return r->dtype == DT_F16 ? vec_load_f16(half) : vec_load_bf16(half);
}

INLINE struct int8_scale source_scale(const struct source_row *r)
{
    const struct vec zero = vec_set(0);
    struct vec most = zero, zeros = zero;
    for (uint32_t k = 0; k < r->n_in; k += 16) {
        struct vec v = source_vec(r, k);
        most = vec_max(vec_abs(v), most);
        zeros = vec_fma(v, zero, zeros);
    }
    return int8_scale(vec_fold_add(zeros) == 0 ? vec_fold_max(most) : NAN);
}

INLINE void wide_pack_output(uint8_t *panel, uint32_t lane, const struct source_row *r)
{
    const struct int8_scale s = source_scale(r);
    float *scales = (float *)(void *)(panel + quant_scales_at(r->n_in));
    for (uint32_t k = 0; k < quant_k(r->n_in); k += 16) {
        uint32_t cells[4];
        int8_t q[16];
        vec_store_i8_n(q, wide_int8_round(source_vec(r, k), s.inverse), 16);
        memcpy(cells, q, 16);
        for (uint32_t i = 0; i < 4; i++) {
            cells[i] ^= QUANT_ZERO * 0x01010101u; /* + 128 in each byte */
            memcpy(panel + quant_index(lane, k + 4 * i), &cells[i], 4);
        }
    }
    scales[lane] = s.scale;
}

INLINE void wide_pack_quant(const struct pack_quant_args *a, const struct kern_exec *x)
{
    const size_t element = a->src_dtype == DT_F32 ? 4 : 2;
    const uint32_t first = a->row_start / KERN_PANEL, row_end = a->row_start + a->n_out;
    const uint32_t end = (row_end + KERN_PANEL - 1) / KERN_PANEL;
    if (a->n_out == 0)
        return;
    struct range panels = split(end - first, x);
    for (size_t p = first + panels.begin; p < first + panels.end; p++)
        for (uint32_t lane = 0; lane < KERN_PANEL; lane++) {
            uint32_t o = (uint32_t)p * KERN_PANEL + lane;
            bool present = o >= a->row_start && o < row_end;
            if (!present && o < a->n_out_total)
                continue; /* another call's */
            size_t at = present ? (size_t)(o - a->row_start) * a->n_in * element : 0;
            struct source_row r = {present ? (const char *)a->src + at : NULL, a->src_dtype,
                                   a->n_in};
            wide_pack_output((uint8_t *)a->dst + p * quant_panel_bytes(a->n_in), lane, &r);
        }
}

#endif
#endif
