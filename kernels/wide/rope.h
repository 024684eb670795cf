/* SPDX-License-Identifier: Apache-2.0 */
/* rope on 16 pairs; formula: ref/rope.c, each product and sum rounded. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ROPE_H
#define QUIRE_KERNELS_WIDE_ROPE_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* (u, v) -> (u c - v s, v c + u s) */
INLINE void wide_transpose(struct vec *u, struct vec *v, struct vec c, struct vec s)
{
    struct vec old = *u;
    *u = vec_sub(vec_mul(old, c), vec_mul(*v, s));
    *v = vec_add(vec_mul(*v, c), vec_mul(old, s));
}

INLINE void wide_rotate_head(const struct rope_args *a, float *head, const float *cos_sin)
{
    uint32_t half = a->n_rot / 2, j = 0;
    struct vec c, s, u, v;
    for (; j + 16 <= half; j += 16) {
        vec_load_pairs(cos_sin + 2 * j, &c, &s);
        if (a->interleaved) {
            vec_load_pairs(head + 2 * j, &u, &v);
            wide_transpose(&u, &v, c, s);
            vec_store_pairs(head + 2 * j, u, v);
        } else {
            u = vec_load(head + j);
            v = vec_load(head + j + half);
            wide_transpose(&u, &v, c, s);
            vec_store(head + j, u);
            vec_store(head + j + half, v);
        }
    }
    for (; j < half; j++) { /* a rest of fewer than 16 pairs */
        float *p = a->interleaved ? head + 2 * j : head + j;
        float *q = a->interleaved ? p + 1 : p + half;
        float x = *p, y = *q;
        *p = x * cos_sin[2 * j] - y * cos_sin[2 * j + 1];
        *q = y * cos_sin[2 * j] + x * cos_sin[2 * j + 1];
    }
}

INLINE void wide_rope(const struct rope_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_head, x);
    for (size_t i = heads.begin; i < heads.end; i++) {
        size_t row = i / a->n_head, head = i % a->n_head;
        wide_rotate_head(a, a->x + row * a->x_stride + head * a->head_dim,
                         a->table + (size_t)a->pos[row] * (a->n_rot / 2) * 2);
    }
}

#endif
#endif
