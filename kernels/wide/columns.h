/* SPDX-License-Identifier: Apache-2.0 */
/* columns - division of an elementwise operation into rows x chunks of 256 columns, so that all
 * threads share one long row. Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_COLUMNS_H
#define QUIRE_KERNELS_WIDE_COLUMNS_H
#include "kernels/tiling/split.h"

#define CHUNK 256u

struct chunk {
    size_t row;
    uint32_t begin, end; /* columns */
};

static inline size_t chunk_count(size_t n_row, uint32_t n_col)
{
    return n_row * (((size_t)n_col + CHUNK - 1) / CHUNK);
}

static inline struct chunk chunk_at(size_t i, uint32_t n_col)
{
    size_t per_row = ((size_t)n_col + CHUNK - 1) / CHUNK;
    uint32_t begin = (uint32_t)(i % per_row) * CHUNK;
    uint32_t end = n_col - begin < CHUNK ? n_col : begin + CHUNK;
    return (struct chunk){i / per_row, begin, end};
}

#endif
