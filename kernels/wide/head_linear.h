/* SPDX-License-Identifier: Apache-2.0 */
/* head_linear on 16 lanes. Rows that share a head's weights go together, so that each number of a
 * weight is loaded once for them. Order: ops_mla.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_HEAD_LINEAR_H
#define QUIRE_KERNELS_WIDE_HEAD_LINEAR_H
#include <string.h>
#include "kernels/ops/ops_mla.h"
#include "kernels/wide/element.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define WIDE_HEAD_ROWS 4u
#define WIDE_HEAD_VECS (VEC_SUMS / 5 ? VEC_SUMS / 5 : 1) /* of outputs of a row at once */

struct wide_head { /* some rows of one head */
    const struct head_linear_args *a;
    const char *w;  /* the head's first row that is used */
    const float *x; /* of the first row */
    size_t y;       /* likewise, elements */
    uint32_t n;     /* rows */
    size_t w_row;   /* bytes */
    uint32_t w_width;
};

INLINE void wide_head_store(const struct wide_head *t, size_t at, struct vec v, uint32_t n)
{
    if (t->a->y_dtype == DT_F32)
        vec_store_n((float *)t->a->y + at, v, n);
    else
        vec_store_bf16_n((uint16_t *)t->a->y + at, v, n);
}

/* Outputs o … of the transposed form, n_vec vecs of them. */
INLINE void wide_head_columns(const struct wide_head *t, uint32_t o, uint32_t n_vec)
{
    const uint32_t left = t->a->n_col - o;
    struct vec sums[WIDE_HEAD_ROWS][WIDE_HEAD_VECS];
    for (uint32_t i = 0; i < WIDE_HEAD_ROWS; i++)
        for (uint32_t v = 0; v < n_vec; v++)
            sums[i][v] = vec_set(0);
    for (uint32_t k = 0; k < t->a->n_w; k++) {
        const char *w = t->w + k * t->w_row + (size_t)o * t->w_width;
        for (uint32_t v = 0; v < n_vec; v++) {
            const uint32_t n = left - 16 * v < 16 ? left - 16 * v : 16;
            const struct vec x = wide_element(w + 16 * (size_t)v * t->w_width, t->a->w_dtype, n);
            for (uint32_t i = 0; i < t->n; i++)
                sums[i][v] = vec_fma(vec_set(t->x[i * t->a->x_stride + k]), x, sums[i][v]);
        }
    }
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t v = 0; v < n_vec; v++)
            wide_head_store(t, t->y + i * t->a->y_stride + o + 16 * v, sums[i][v],
                            left - 16 * v < 16 ? left - 16 * v : 16);
}

INLINE void wide_head_dot(const struct wide_head *t, uint32_t o)
{
    const char *w = t->w + o * t->w_row;
    struct vec sums[WIDE_HEAD_ROWS];
    for (uint32_t i = 0; i < WIDE_HEAD_ROWS; i++)
        sums[i] = vec_set(0);
    for (uint32_t k = 0; k < t->a->n_col; k += 16) {
        const uint32_t n = t->a->n_col - k < 16 ? t->a->n_col - k : 16;
        const struct vec v = wide_element(w + (size_t)k * t->w_width, t->a->w_dtype, n);
        for (uint32_t i = 0; i < t->n; i++)
            sums[i] = vec_fma(vec_load_n(t->x + i * t->a->x_stride + k, n), v, sums[i]);
    }
    for (uint32_t i = 0; i < t->n; i++)
        wide_head_store(t, t->y + i * t->a->y_stride + o, vec_set(vec_fold_add(sums[i])), 1);
}

INLINE void wide_head_rows(const struct wide_head *t)
{
    const struct head_linear_args *a = t->a;
    const uint32_t n_out = a->transposed ? a->n_col : a->n_w;
    const uint32_t n_in = a->transposed ? a->n_w : a->n_col, n_vec = (a->n_col + 15) / 16;
    for (uint32_t v = 0; a->transposed && v < n_vec; v += WIDE_HEAD_VECS)
        if (n_vec - v >= WIDE_HEAD_VECS)
            wide_head_columns(t, 16 * v, WIDE_HEAD_VECS);
        else
            wide_head_columns(t, 16 * v, n_vec - v);
    for (uint32_t o = 0; !a->transposed && o < a->n_w; o++)
        wide_head_dot(t, o);
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t c = 0; c < a->n_kept; c += 16) {
            const uint32_t n = a->n_kept - c < 16 ? a->n_kept - c : 16;
            wide_head_store(t, t->y + i * a->y_stride + n_out + c,
                            vec_load_n(t->x + i * a->x_stride + n_in + c, n), n);
        }
}

INLINE void wide_head_linear(const struct head_linear_args *a, const struct kern_exec *x)
{
    const uint32_t n_block = (a->n_row + WIDE_HEAD_ROWS - 1) / WIDE_HEAD_ROWS;
    const struct range parts = split((size_t)a->n_head * n_block, x);
    struct wide_head t = {.a = a, .w_width = a->w_dtype == DT_F32 ? 4 : 2};
    t.w_row = (size_t)a->n_col * t.w_width;
    for (size_t i = parts.begin; i < parts.end; i++) {
        const size_t head = i / n_block, row = i % n_block * WIDE_HEAD_ROWS;
        t.w = (const char *)a->w + (head * a->w_rows + a->w_first) * t.w_row;
        t.x = a->x + row * a->x_stride + head * a->x_head;
        t.y = row * a->y_stride + head * a->y_head;
        t.n = a->n_row - row < WIDE_HEAD_ROWS ? (uint32_t)(a->n_row - row) : WIDE_HEAD_ROWS;
        wide_head_rows(&t);
    }
}

#endif
#endif
