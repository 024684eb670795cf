/* SPDX-License-Identifier: Apache-2.0 */
/* pack_int8, 16 outputs x 64 elements at a time; layout: ops_int8.h, rules: ref/pack_int8.c.
 *
 * An output's row is read twice, for its scale and for its bytes; the second time it comes from the
 * cache. Four bytes along K are a cell; squares of 16 outputs x 16 cells are transposed and stored
 * in whole lines, as in pack.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_PACK_INT8_H
#define QUIRE_KERNELS_WIDE_PACK_INT8_H
#include "kernels/ops/int8_layout.h"
#include "kernels/wide/element.h"
#include "kernels/wide/int8.h"
#ifdef VEC_SUMS

struct source_row {
    const char *p; /* NULL: zeros, or packed by another call */
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

/* 16 outputs from lane `lane` on; outputs without a bit in `mine` are packed by another call. */
INLINE void wide_pack_outputs(uint8_t *panel, uint32_t lane, const struct source_row rows[16],
                              uint32_t mine)
{
    float scales[16], *to = (float *)(void *)(panel + int8_panel_scales_at(rows->n_in)) + lane;
    float inverse[16];
    for (uint32_t i = 0; i < 16; i++) {
        const struct int8_scale s = source_scale(&rows[i]);
        scales[i] = s.scale;
        inverse[i] = s.inverse;
    }
    for (uint32_t k = 0; k < int8_k(rows->n_in); k += 64) {
        _Alignas(64) int8_t q[16][64];
        struct vec v[16];
        for (uint32_t i = 0; i < 16; i++)
            for (uint32_t j = 0; j < 64; j += 16)
                vec_store_i8_n(q[i] + j, wide_int8_round(source_vec(&rows[i], k + j), inverse[i]),
                               16);
        UNROLL
        for (uint32_t i = 0; i < 16; i++) /* + 128 in each byte */
            v[i] = vec_flip(vec_load((const float *)(const void *)q[i]), INT8_ZERO * 0x01010101u);
        vec_transpose(v);
        UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            float *line = (float *)(void *)(panel + int8_index(lane, k + 4 * i));
            if (mine == 0xffff)
                vec_store(line, v[i]);
            else
                vec_store_these(line, v[i], mine);
        }
    }
    if (mine == 0xffff)
        memcpy(to, scales, sizeof scales);
    else
        vec_store_these(to, vec_load(scales), mine);
}

INLINE void wide_pack_int8_typed(const struct pack_int8_args *a, const struct kern_exec *x,
                                 enum dtype dtype)
{
    const size_t row = (size_t)a->n_in * (dtype == DT_F32 ? 4 : 2);
    const uint32_t first = a->row_start / KERN_PANEL, row_end = a->row_start + a->n_out;
    const uint32_t end = (row_end + KERN_PANEL - 1) / KERN_PANEL;
    if (a->n_out == 0)
        return;
    struct range panels = split(end - first, x);
    for (size_t p = first + panels.begin; p < first + panels.end; p++)
        for (uint32_t lane = 0; lane < KERN_PANEL; lane += 16) {
            struct source_row rows[16];
            uint32_t mine = 0;
            for (uint32_t i = 0; i < 16; i++) {
                uint32_t o = (uint32_t)p * KERN_PANEL + lane + i;
                bool present = o >= a->row_start && o < row_end;
                size_t at = present ? (o - a->row_start) * row : 0;
                rows[i] =
                    (struct source_row){present ? (const char *)a->src + at : NULL, dtype, a->n_in};
                mine |= (uint32_t)(present || o >= a->n_out_total) << i;
            }
            if (mine)
                wide_pack_outputs((uint8_t *)a->dst + p * int8_panel_bytes(a->n_in), lane, rows,
                                  mine);
        }
}

INLINE void wide_pack_int8(const struct pack_int8_args *a, const struct kern_exec *x)
{
    if (a->src_dtype == DT_BF16)
        wide_pack_int8_typed(a, x, DT_BF16);
    else
        wide_pack_int8_typed(a, x, a->src_dtype);
}

#endif
#endif
