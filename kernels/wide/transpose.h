/* SPDX-License-Identifier: Apache-2.0 */
/* transpose on squares of 16 x 16; definition: ref/transpose.c. A tile of 64 x 64 is cut into
 * squares so that the lines of both sides stay in the first-level cache. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_TRANSPOSE_H
#define QUIRE_KERNELS_WIDE_TRANSPOSE_H
#include "kernels/wide/store.h"
#ifdef VEC_SUMS

#define TRANSPOSE_TILE 64u

INLINE void transpose_square(const struct transpose_args *a, size_t i, size_t c)
{
    const uint32_t rows = a->n_row - i < 16 ? (uint32_t)(a->n_row - i) : 16;
    const uint32_t columns = a->n_col - c < 16 ? (uint32_t)(a->n_col - c) : 16;
    struct vec v[16];
    UNROLL
    for (uint32_t r = 0; r < 16; r++)
        v[r] = r < rows ? wide_load_at(a->x, a->x_dtype, (i + r) * a->x_stride + c, columns)
                        : vec_set(0);
    vec_transpose(v);
    UNROLL
    for (uint32_t r = 0; r < 16; r++)
        if (r < columns)
            wide_store_at(a->y, a->y_dtype, (c + r) * a->y_stride + i, v[r], rows);
}

INLINE void wide_transpose(const struct transpose_args *a, const struct kern_exec *x)
{
    const size_t n_down = ((size_t)a->n_row + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
    const size_t n_across = ((size_t)a->n_col + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
    const struct range tiles = split(n_down * n_across, x);
    for (size_t t = tiles.begin; t < tiles.end; t++) {
        const size_t row = t % n_down * TRANSPOSE_TILE, column = t / n_down * TRANSPOSE_TILE;
        for (size_t c = column; c < a->n_col && c < column + TRANSPOSE_TILE; c += 16)
            for (size_t i = row; i < a->n_row && i < row + TRANSPOSE_TILE; i += 16)
                transpose_square(a, i, c);
    }
}

#endif
#endif
