/* SPDX-License-Identifier: Apache-2.0 */
/* column_sums on 16 lanes; formula and order: ref/column_sums.c. Threads: as ops.h; a thread has
 * whole groups of 16 columns, and goes down 64 at a time where it has them. */
#ifndef QUIRE_KERNELS_WIDE_COLUMN_SUMS_H
#define QUIRE_KERNELS_WIDE_COLUMN_SUMS_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define COLUMN_VECS (VEC_SUMS >= 24 ? 4 : 1)

/* Groups of 16 columns from c on: n_vec whole ones, or one of n columns. */
INLINE void column_sums_strip(const struct column_sums_args *a, size_t c, const int n_vec,
                              uint32_t n)
{
    const size_t n_row = (size_t)a->n_row * a->n_unit;
    struct vec sum[4], block[4];
    for (int j = 0; j < n_vec; j++)
        sum[j] = block[j] = vec_set(0);
    for (size_t i = 0; i < n_row; i++) {
        const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col + c;
        const float *x = a->x + row * a->x_stride + at;
        UNROLL
        for (int j = 0; j < n_vec; j++) {
            const struct vec v = vec_load_n(x + 16 * j, n);
            if (!a->z) {
                block[j] = vec_add(block[j], v);
                continue;
            }
            struct vec z = vec_load_n(a->z + row * a->z_stride + at + 16 * (size_t)j, n);
            if (a->shift)
                z = vec_sub(z, vec_set(a->shift[i]));
            block[j] = vec_fma(vec_mul(v, z), vec_set(a->r[i]), block[j]);
        }
        if (i % KERN_COLUMN_BLOCK != KERN_COLUMN_BLOCK - 1 && i + 1 < n_row)
            continue;
        UNROLL
        for (int j = 0; j < n_vec; j++) {
            sum[j] = vec_add(sum[j], block[j]);
            block[j] = vec_set(0);
        }
    }
    UNROLL
    for (int j = 0; j < n_vec; j++)
        vec_store_n(a->y + c + 16 * j, vec_add(vec_load_n(a->y + c + 16 * j, n), sum[j]), n);
}

INLINE void wide_column_sums(const struct column_sums_args *a, const struct kern_exec *x)
{
    const struct range groups = split(((size_t)a->n_col + 15) / 16, x);
    size_t g = groups.begin;
    for (; g + COLUMN_VECS <= groups.end && (g + COLUMN_VECS) * 16 <= a->n_col; g += COLUMN_VECS)
        column_sums_strip(a, g * 16, COLUMN_VECS, 16);
    for (; g < groups.end; g++)
        column_sums_strip(a, g * 16, 1, a->n_col - g * 16 < 16 ? a->n_col - (uint32_t)g * 16 : 16);
}

#endif
#endif
