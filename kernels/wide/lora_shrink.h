/* SPDX-License-Identifier: Apache-2.0 */
/* lora_shrink on 16 lanes; formula and order: ops_lora.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LORA_SHRINK_H
#define QUIRE_KERNELS_WIDE_LORA_SHRINK_H
#include "kernels/wide/lora_tile.h"
#ifdef VEC_SUMS

struct lora_types { /* constants where it is used */
    enum dtype x, w;
    uint32_t x_width, w_width; /* bytes */
    uint32_t n_row, n_rank;
};

struct lora_sums { /* of some rows of x by some rows of A */
    struct vec sums[4][LORA_RANKS];
    const char *x[4], *w;
};

/* Inputs k … k + n - 1 of them. */
INLINE void wide_shrink_step(struct lora_sums *s, struct lora_types type, uint32_t n_in, uint32_t k,
                             uint32_t n)
{
    struct vec w[LORA_RANKS];
    UNROLL
    for (uint32_t j = 0; j < type.n_rank; j++)
        w[j] = wide_element(s->w + ((size_t)j * n_in + k) * type.w_width, type.w, n);
    UNROLL
    for (uint32_t i = 0; i < type.n_row; i++) {
        const struct vec v = wide_element(s->x[i] + k * type.x_width, type.x, n);
        UNROLL
        for (uint32_t j = 0; j < type.n_rank; j++)
            s->sums[i][j] = vec_fma(v, w[j], s->sums[i][j]);
    }
}

INLINE void wide_shrink_sums(const struct lora_shrink_args *a, const struct lora_tile *t,
                             struct lora_types type)
{
    const uint32_t n_in = t->f->n_in;
    struct lora_sums s;
    uint32_t k = 0;
    s.w = lora_tile_bytes(t, true);
    UNROLL
    for (uint32_t i = 0; i < type.n_row; i++) {
        s.x[i] = (const char *)a->x + (t->rows[i] - a->first) * a->x_stride * type.x_width;
        UNROLL
        for (uint32_t j = 0; j < type.n_rank; j++)
            s.sums[i][j] = vec_set(0);
    }
    for (; k + 16 <= n_in; k += 16) {
        lora_prefetch(t->next + (size_t)k * type.n_rank * type.w_width,
                      16 * type.n_rank * type.w_width);
        wide_shrink_step(&s, type, n_in, k, 16);
    }
    if (k < n_in)
        wide_shrink_step(&s, type, n_in, k, n_in - k);
    UNROLL
    for (uint32_t i = 0; i < type.n_row; i++)
        UNROLL
    for (uint32_t j = 0; j < type.n_rank; j++)
        a->t[(t->rows[i] - a->first) * a->t_stride + t->t + t->at + j] =
            vec_fold_add(s.sums[i][j]) * t->part->scale;
}

INLINE void wide_shrink_rows(const struct lora_shrink_args *a, const struct lora_tile *t,
                             struct lora_types type)
{
    struct lora_tile one = *t;
    type.n_row = LORA_ROWS;
    if (t->n == LORA_ROWS) {
        wide_shrink_sums(a, t, type);
        return;
    }
    type.n_row = 1;
    for (uint32_t i = 0; i < t->n; i++, one.rows++)
        wide_shrink_sums(a, &one, type);
}

INLINE void wide_shrink_tile(const struct lora_shrink_args *a, const struct lora_tile *t,
                             enum dtype x, enum dtype w)
{
    struct lora_types type = {x, w, lora_width(x), lora_width(w), 1, LORA_RANKS};
    struct lora_tile one = *t;
    if (t->part->rank - t->at >= LORA_RANKS) {
        wide_shrink_rows(a, t, type);
        return;
    }
    type.n_rank = 1;
    for (; one.at < t->part->rank; one.at++)
        wide_shrink_rows(a, &one, type);
}

INLINE void wide_shrink_item(const struct lora_shrink_args *a, const struct lora_tile *t)
{
    if (a->x_dtype == DT_BF16 && t->f->dtype == DT_BF16)
        wide_shrink_tile(a, t, DT_BF16, DT_BF16);
    else if (a->x_dtype == DT_F32 && t->f->dtype == DT_BF16)
        wide_shrink_tile(a, t, DT_F32, DT_BF16);
    else if (a->x_dtype == DT_F32 && t->f->dtype == DT_F32)
        wide_shrink_tile(a, t, DT_F32, DT_F32);
    else
        wide_shrink_tile(a, t, a->x_dtype, t->f->dtype);
}

INLINE void wide_lora_shrink(const struct lora_shrink_args *a, const struct kern_exec *x)
{
    struct lora_cursor c = lora_cursor_at(a->groups, a->n_group, x, true);
    struct lora_tile t, next;
    bool has_next = lora_cursor_next(&c, &next, true);
    while (has_next) {
        t = next;
        has_next = lora_cursor_next(&c, &next, true);
        t.next = lora_tile_bytes(&next, true);
        wide_shrink_item(a, &t);
    }
}

#endif
#endif
