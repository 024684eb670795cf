/* SPDX-License-Identifier: Apache-2.0 */
/* pack_int4 on 16 weights of a group at a time; formula: ref/pack_int4.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_PACK_INT4_H
#define QUIRE_KERNELS_WIDE_PACK_INT4_H
#include "kernels/tiling/int4_fit.h"
#include "kernels/wide/element.h"
#ifdef VEC_SUMS

#define INT4_VECS (INT4_GROUP_MAX / 16)

INLINE struct vec int4_round(struct vec w, const struct int4_fit *f)
{
    struct vec q = vec_round(vec_mul(w, vec_set(f->inverse)));
    q = vec_add(q, vec_set(f->zero));
    return vec_min(vec_max(q, vec_set(0)), vec_set(INT4_MOST));
}

INLINE float int4_error(const struct vec *w, uint32_t n_vec, const struct int4_fit *f)
{
    struct vec sum = vec_set(0);
    const struct vec scale = vec_set(f->scale), zero = vec_set(f->zero);
    for (uint32_t i = 0; i < n_vec; i++) {
        struct vec d = vec_fnma(scale, vec_sub(int4_round(w[i], f), zero), w[i]);
        sum = vec_fma(d, d, sum);
    }
    return vec_fold_add(sum);
}

INLINE void int4_fit_group(uint8_t *at, uint32_t lane, const struct vec *w, uint32_t n_vec)
{
    int8_t q[INT4_GROUP_MAX] = {0};
    struct int4_group out = {.q = (const uint8_t *)q};
    struct int4_fit best = {0}, f;
    const struct vec nought = vec_set(0);
    struct vec less = nought, more = nought, zeros = nought;
    float least = INFINITY;
    for (uint32_t i = 0; i < n_vec; i++) {
        less = vec_max(vec_sub(nought, w[i]), less);
        more = vec_max(w[i], more);
        zeros = vec_fma(w[i], nought, zeros);
    }
    const float low = -vec_fold_max(less), high = vec_fold_max(more);
    if (!(vec_fold_add(zeros) == 0) || !(high - low < INT4_RANGE_MAX)) {
        out.scale = 0x7e00;
        int4_put(at, lane, 16 * n_vec, &out);
        return;
    }
    for (int t = 0; t < KERN_INT4_TRIES; t++) {
        float error;
        if (!int4_fit(&f, low, high, t) || (error = int4_error(w, n_vec, &f)) >= least)
            continue;
        best = f;
        least = error;
    }
    for (uint32_t i = 0; best.scale > 0 && i < n_vec; i++)
        vec_store_i8_n(q + 16 * i, int4_round(w[i], &best), 16);
    out.scale = best.stored;
    out.zero = (uint8_t)best.zero;
    int4_put(at, lane, 16 * n_vec, &out);
}

INLINE void int4_pack_row(const struct pack_int4_args *a, uint32_t o, const char *src)
{
    const size_t element = a->src_dtype == DT_F32 ? 4 : 2;
    uint8_t *at = (uint8_t *)a->dst + o / KERN_PANEL * int4_panel_bytes(a->n_in, a->group);
    for (uint32_t k = 0; k < a->n_in; k += a->group, at += int4_group_bytes(a->group)) {
        struct vec w[INT4_VECS];
        for (uint32_t i = 0; i < a->group / 16; i++)
            w[i] = src ? wide_element(src + (k + 16 * i) * element, a->src_dtype, 16) : vec_set(0);
        int4_fit_group(at, o % KERN_PANEL, w, a->group / 16);
    }
}

INLINE void wide_pack_int4(const struct pack_int4_args *a, const struct kern_exec *x)
{
    const size_t row_bytes = (size_t)a->n_in * (a->src_dtype == DT_F32 ? 4 : 2);
    const uint32_t first = a->row_start / KERN_PANEL, row_end = a->row_start + a->n_out;
    if (a->n_out == 0)
        return;
    struct range panels = split((row_end + KERN_PANEL - 1) / KERN_PANEL - first, x);
    uint32_t begin = (first + (uint32_t)panels.begin) * KERN_PANEL;
    uint32_t end = (first + (uint32_t)panels.end) * KERN_PANEL;
    for (uint32_t o = begin; o < end; o++) {
        bool present = o >= a->row_start && o < row_end;
        if (present || o >= a->n_out_total)
            int4_pack_row(a, o,
                          present ? (const char *)a->src + (o - a->row_start) * row_bytes : NULL);
    }
}

#endif
#endif
