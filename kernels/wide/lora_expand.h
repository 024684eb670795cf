/* SPDX-License-Identifier: Apache-2.0 */
/* lora_expand on 16 lanes; formula and order: ops_lora.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LORA_EXPAND_H
#define QUIRE_KERNELS_WIDE_LORA_EXPAND_H
#include "kernels/wide/lora_tile.h"
#ifdef VEC_SUMS

/* n_row rows of t by n_vec vecs of a panel, both constants; the last vec has n columns. */
INLINE void wide_expand_sums(const struct lora_expand_args *a, const struct lora_tile *t,
                             enum dtype type, uint32_t n_row, uint32_t first_vec, uint32_t n_vec)
{
    const size_t width = type == DT_F32 ? 4 : 2;
    const uint32_t rank = t->part->rank, column = t->at * KERN_LORA_PANEL + 16 * first_vec;
    const uint32_t left = t->part->n_out - column;
    const char *b = (const char *)t->part->b +
                    ((size_t)t->at * rank * KERN_LORA_PANEL + 16 * (size_t)first_vec) * width;
    struct vec sums[4][LORA_VECS], w[LORA_VECS];
    UNROLL
    for (uint32_t i = 0; i < n_row; i++)
        UNROLL
    for (uint32_t v = 0; v < n_vec; v++)
        sums[i][v] = vec_set(0);
    for (uint32_t j = 0; j < rank; j++) {
        UNROLL
        for (uint32_t v = 0; v < n_vec; v++)
            w[v] = wide_element(b + ((size_t)j * KERN_LORA_PANEL + 16 * v) * width, type, 16);
        UNROLL
        for (uint32_t i = 0; i < n_row; i++) {
            const float f = a->t[(t->rows[i] - a->first) * a->t_stride + t->t + j];
            UNROLL
            for (uint32_t v = 0; v < n_vec; v++)
                sums[i][v] = vec_fma(vec_set(f), w[v], sums[i][v]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < n_row; i++)
        UNROLL
    for (uint32_t v = 0; v < n_vec; v++) {
        const uint32_t n = left - 16 * v < 16 ? left - 16 * v : 16;
        float *y = a->y + (t->rows[i] - a->first) * a->y_stride + t->part->col + column + 16 * v;
        vec_store_n(y, vec_add(vec_load_n(y, n), sums[i][v]), n);
    }
}

INLINE void wide_expand_rows(const struct lora_expand_args *a, const struct lora_tile *t,
                             enum dtype type, uint32_t first_vec, uint32_t n_vec)
{
    struct lora_tile one = *t;
    if (t->n == LORA_ROWS) {
        wide_expand_sums(a, t, type, LORA_ROWS, first_vec, n_vec);
        return;
    }
    for (uint32_t i = 0; i < t->n; i++, one.rows++)
        wide_expand_sums(a, &one, type, 1, first_vec, n_vec);
}

/* A panel; of one that is not full a vec at a time, so that padding is not written. */
INLINE void wide_expand_panel(const struct lora_expand_args *a, const struct lora_tile *t,
                              enum dtype type)
{
    const uint32_t left = t->part->n_out - t->at * KERN_LORA_PANEL;
    if (left >= KERN_LORA_PANEL) {
        wide_expand_rows(a, t, type, 0, LORA_VECS);
        return;
    }
    for (uint32_t v = 0; 16 * v < left; v++)
        wide_expand_rows(a, t, type, v, 1);
}

INLINE void wide_expand_item(const struct lora_expand_args *a, const struct lora_tile *t)
{
    if (t->f->dtype == DT_BF16)
        wide_expand_panel(a, t, DT_BF16);
    else if (t->f->dtype == DT_F32)
        wide_expand_panel(a, t, DT_F32);
    else
        wide_expand_panel(a, t, DT_F16);
}

INLINE void wide_lora_expand(const struct lora_expand_args *a, const struct kern_exec *x)
{
    size_t n = 0, before = 0;
    for (uint32_t g = 0; g < a->n_group; g++)
        n += lora_items(&a->groups[g], false);
    const struct range mine = split(n, x);
    for (uint32_t g = 0; g < a->n_group; g++) {
        const size_t n_item = lora_items(&a->groups[g], false);
        const size_t end = mine.end < before + n_item ? mine.end : before + n_item;
        for (size_t i = mine.begin > before ? mine.begin : before; i < end; i++) {
            const struct lora_tile t = lora_tile_at(&a->groups[g], i - before, false);
            wide_expand_item(a, &t);
        }
        before += n_item;
    }
}

#endif
#endif
