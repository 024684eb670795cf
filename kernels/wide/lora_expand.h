/* SPDX-License-Identifier: Apache-2.0 */
/* lora_expand on 16 lanes; formula and order: ops_lora.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LORA_EXPAND_H
#define QUIRE_KERNELS_WIDE_LORA_EXPAND_H
#include "kernels/wide/lora_tile.h"
#ifdef VEC_SUMS

struct expand_form { /* constants where it is used */
    enum dtype type;
    uint32_t n_row, n_vec;
    bool is_full; /* each vec has 16 columns */
};

/* y += sums, of one row. */
INLINE void wide_expand_add(float *y, const struct vec sums[LORA_VECS], struct expand_form f,
                            uint32_t n_col)
{
    UNROLL
    for (uint32_t v = 0; v < f.n_vec; v++) {
        const uint32_t left = n_col - 16 * v, n = left < 16 ? left : 16;
        if (f.is_full)
            vec_store(y + 16 * v, vec_add(vec_load(y + 16 * v), sums[v]));
        else
            vec_store_n(y + 16 * v, vec_add(vec_load_n(y + 16 * v, n), sums[v]), n);
    }
}

/* Some rows of t by some vecs of a panel. */
INLINE void wide_expand_sums(const struct lora_expand_args *a, const struct lora_tile *t,
                             struct expand_form f, uint32_t first_vec)
{
    const size_t width = lora_width(f.type), step = KERN_LORA_PANEL * width;
    const uint32_t rank = t->part->rank, column = t->at * KERN_LORA_PANEL + 16 * first_vec;
    const char *b = lora_tile_bytes(t, false) + 16 * (size_t)first_vec * width, *next = t->next;
    const float *from[LORA_ROWS];
    struct vec sums[LORA_ROWS][LORA_VECS], x[LORA_ROWS];
    UNROLL
    for (uint32_t i = 0; i < f.n_row; i++) {
        from[i] = a->t + (t->rows[i] - a->first) * a->t_stride + t->t;
        UNROLL
        for (uint32_t v = 0; v < f.n_vec; v++)
            sums[i][v] = vec_set(0);
    }
    for (uint32_t j = 0; j < rank; j++, b += step, next += step) {
        lora_prefetch(next, (uint32_t)step);
        UNROLL
        for (uint32_t i = 0; i < f.n_row; i++)
            x[i] = vec_set(from[i][j]);
        UNROLL
        for (uint32_t v = 0; v < f.n_vec; v++) {
            const struct vec w = wide_element(b + 16 * v * width, f.type, 16);
            UNROLL
            for (uint32_t i = 0; i < f.n_row; i++)
                sums[i][v] = vec_fma(x[i], w, sums[i][v]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < f.n_row; i++)
        wide_expand_add(a->y + (t->rows[i] - a->first) * a->y_stride + t->part->col + column,
                        sums[i], f, t->part->n_out - column);
}

INLINE void wide_expand_rows(const struct lora_expand_args *a, const struct lora_tile *t,
                             struct expand_form f, uint32_t first_vec)
{
    struct lora_tile one = *t;
    f.n_row = LORA_ROWS;
    if (t->n == LORA_ROWS) {
        wide_expand_sums(a, t, f, first_vec);
        return;
    }
    f.n_row = 1;
    for (uint32_t i = 0; i < t->n; i++, one.rows++)
        wide_expand_sums(a, &one, f, first_vec);
}

/* A panel; of one that is not full a vec at a time, so that padding is not written. */
INLINE void wide_expand_panel(const struct lora_expand_args *a, const struct lora_tile *t,
                              enum dtype type)
{
    const uint32_t left = t->part->n_out - t->at * KERN_LORA_PANEL;
    if (left >= KERN_LORA_PANEL) {
        wide_expand_rows(a, t, (struct expand_form){type, 1, LORA_VECS, true}, 0);
        return;
    }
    for (uint32_t v = 0; 16 * v < left; v++)
        wide_expand_rows(a, t, (struct expand_form){type, 1, 1, false}, v);
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
    struct lora_cursor c = lora_cursor_at(a->groups, a->n_group, x, false);
    struct lora_tile t, next;
    bool has_next = lora_cursor_next(&c, &next, false);
    while (has_next) {
        t = next;
        has_next = lora_cursor_next(&c, &next, false);
        t.next = lora_tile_bytes(&next, false);
        wide_expand_item(a, &t);
    }
}

#endif
#endif
