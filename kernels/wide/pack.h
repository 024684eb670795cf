/* SPDX-License-Identifier: Apache-2.0 */
/* pack, 16 outputs x 64 bytes at a time; layout: ops.h, rules: ref/pack.c.
 *
 * A cell is 32 bits of a panel's row: an f32, or a pair of halves. 16 outputs give 16 cells each (a
 * line of 64 bytes where nothing is converted); the square is transposed and stored as 16 lines of
 * the panel, so that memory is read and written in whole cache lines:
 *
 *     output 0:  c0 c1 c2 …       ->     row 0 of the panel:  c0 of outputs 0, 1, 2 …
 *     output 1:  c0 c1 c2 …              row 1:               c1 of outputs 0, 1, 2 …
 *
 * The four groups of a panel are processed in rotation, so that the 4 KiB of panel written
 * meanwhile stay in L1. The hardware prefetcher does not follow 64 streams, so their lines are
 * prefetched by software, into L2, because rows of 4 KiB map to the same set of L1. Incomplete
 * groups (the other outputs are padding or belong to another call) are packed output by output.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_PACK_H
#define QUIRE_KERNELS_WIDE_PACK_H
#include "kernels/wide/element.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define PACK_PREFETCH 512 /* bytes of each row */

struct pack_types {
    enum dtype src, dst;
};

/* Rounded to f16 or bf16. */
INLINE void wide_round(uint16_t cells[16], struct vec v, enum dtype dtype)
{
    if (dtype == DT_F16)
        vec_store_f16(cells, v);
    else
        vec_store_bf16_n(cells, v, 16);
}

/* 16 cells from p, which has n more elements; those past them are 0. */
INLINE struct vec wide_cells(const char *p, struct pack_types t, uint32_t n)
{
    uint16_t halves[32] = {0};
    if (t.dst == DT_F32)
        return wide_element(p, t.src, n < 16 ? n : 16);
    if (t.dst == t.src) {
        if (n >= 32)
            return vec_load((const float *)(const void *)p);
        memcpy(halves, p, 2 * (size_t)n);
    } else {
        const size_t element = t.src == DT_F32 ? 4 : 2;
        wide_round(halves, wide_element(p, t.src, n < 16 ? n : 16), t.dst);
        if (n > 16)
            wide_round(halves + 16,
                       wide_element(p + 16 * element, t.src, n - 16 < 16 ? n - 16 : 16), t.dst);
    }
    return vec_load((const float *)(const void *)halves);
}

/* 16 outputs from lane `lane` on, elements k …; n of them are left. */
INLINE void wide_pack_square(char *panel, uint32_t lane, struct vec v[16], enum dtype dst,
                             uint32_t k, uint32_t n)
{
    const uint32_t n_row = dst == DT_F32 ? n : (n + 1) / 2;
    const size_t first = dst == DT_F32 ? k : k / 2;
    vec_transpose(v);
    for (uint32_t i = 0; i < 16 && i < n_row; i++)
        if (dst == DT_F16) {
            uint16_t *to = (uint16_t *)(void *)panel + (k + 2 * i) * (size_t)KERN_PANEL + lane;
            vec_store_halves(to, 2 * i + 1 < n ? to + KERN_PANEL : NULL, v[i]);
        } else {
            vec_store((float *)(void *)panel + (first + i) * KERN_PANEL + lane, v[i]);
        }
}

/* The complete groups of 16 outputs of one panel: a bit of `groups` each. */
INLINE void wide_pack_groups(const struct pack_args *a, char *panel, uint32_t first,
                             uint32_t groups, struct pack_types t)
{
    const size_t row = (size_t)a->n_in * (t.src == DT_F32 ? 4 : 2);
    const uint32_t step = t.dst == DT_F32 ? 16 : 32;
    for (uint32_t k = 0; k < a->n_in; k += step)
        for (uint32_t lane = 0; lane < KERN_PANEL; lane += 16) {
            if (!(groups >> lane / 16 & 1))
                continue;
            const char *p = (const char *)a->src + (size_t)(first + lane - a->row_start) * row +
                            k * (row / a->n_in);
            struct vec v[16];
            UNROLL
            for (uint32_t i = 0; i < 16; i++) {
                __builtin_prefetch(p + i * row + PACK_PREFETCH, 0, 2);
                v[i] = wide_cells(p + i * row, t, a->n_in - k);
            }
            wide_pack_square(panel, lane, v, t.dst, k, a->n_in - k);
        }
}

/* One output of the panel; p NULL: zeros. */
INLINE void wide_pack_lane(const struct pack_args *a, char *panel, uint32_t lane, const char *p)
{
    const size_t element = a->src_dtype == DT_F32 ? 4 : 2;
    for (uint32_t k = 0; k < a->n_in; k += 16) {
        uint32_t n = a->n_in - k < 16 ? a->n_in - k : 16;
        struct vec v = p ? wide_element(p + k * element, a->src_dtype, n) : vec_set(0);
        float whole[16];
        uint16_t cells[16];
        if (a->dst_dtype == DT_F32) {
            vec_store(whole, v);
            for (uint32_t i = 0; i < n; i++)
                ((float *)(void *)panel)[(size_t)(k + i) * KERN_PANEL + lane] = whole[i];
            continue;
        }
        wide_round(cells, v, a->dst_dtype);
        uint16_t *to = (uint16_t *)(void *)panel + (size_t)k * KERN_PANEL;
        if (a->dst_dtype == DT_F16)
            for (uint32_t i = 0; i < n; i++)
                to[(size_t)i * KERN_PANEL + lane] = cells[i];
        else
            for (uint32_t i = 0; i < n; i += 2) /* the second element of an odd n's last pair is
                                                 * 0 */
                memcpy(to + (size_t)i * KERN_PANEL + 2 * (size_t)lane, cells + i, 4);
    }
}

/* One panel: outputs that src holds, and zeros past the last output of dst. */
INLINE void wide_pack_panel(const struct pack_args *a, char *panel, uint32_t first,
                            struct pack_types t)
{
    const uint32_t row_end = a->row_start + a->n_out;
    const size_t row = (size_t)a->n_in * (t.src == DT_F32 ? 4 : 2);
    uint32_t groups = 0;
    for (uint32_t lane = 0; lane < KERN_PANEL; lane += 16)
        if (first + lane >= a->row_start && first + lane + 16 <= row_end)
            groups |= 1u << lane / 16;
    wide_pack_groups(a, panel, first, groups, t);
    for (uint32_t lane = 0; lane < KERN_PANEL; lane++) {
        uint32_t o = first + lane;
        bool present = o >= a->row_start && o < row_end;
        if (groups >> lane / 16 & 1 || (!present && o < a->n_out_total))
            continue; /* done, or packed by another call */
        wide_pack_lane(a, panel, lane,
                       present ? (const char *)a->src + (o - a->row_start) * row : NULL);
    }
}

INLINE void wide_pack_typed(const struct pack_args *a, const struct kern_exec *x,
                            struct pack_types t)
{
    const size_t n_k = t.dst == DT_BF16 ? ((size_t)a->n_in + 1) / 2 * 2 : a->n_in;
    const size_t panel_bytes = n_k * KERN_PANEL * (t.dst == DT_F32 ? 4 : 2);
    const uint32_t first = a->row_start / KERN_PANEL;
    const uint32_t end = (a->row_start + a->n_out + KERN_PANEL - 1) / KERN_PANEL;
    if (a->n_out == 0)
        return;
    struct range panels = split(end - first, x);
    for (size_t p = first + panels.begin; p < first + panels.end; p++)
        wide_pack_panel(a, (char *)a->dst + p * panel_bytes, (uint32_t)p * KERN_PANEL, t);
}

/* Types as constants, for the compiler. Most weights are copied (bf16, f16, f32) or made bf16. */
INLINE void wide_pack(const struct pack_args *a, const struct kern_exec *x)
{
    if (a->src_dtype == DT_BF16 && a->dst_dtype == DT_BF16)
        wide_pack_typed(a, x, (struct pack_types){DT_BF16, DT_BF16});
    else if (a->src_dtype == DT_F16 && a->dst_dtype == DT_F16)
        wide_pack_typed(a, x, (struct pack_types){DT_F16, DT_F16});
    else if (a->src_dtype == DT_F32 && a->dst_dtype == DT_F32)
        wide_pack_typed(a, x, (struct pack_types){DT_F32, DT_F32});
    else if (a->src_dtype == DT_F32 && a->dst_dtype == DT_BF16)
        wide_pack_typed(a, x, (struct pack_types){DT_F32, DT_BF16});
    else
        wide_pack_typed(a, x, (struct pack_types){a->src_dtype, a->dst_dtype});
}

#endif
#endif
