/* SPDX-License-Identifier: Apache-2.0 */
/* tile - shared code of the products by AMX tiles; private to kernels/amx.
 *
 * A tile load reads its lines one after the other and waits for each: from the second-level cache
 * it takes several times as long as a tile product. So lines are prefetched into the first level
 * SOON steps before they are read (tests/bench/README.md, kernels: tile loads).
 *
 * Threads: pure functions; tile registers belong to each thread. */
#ifndef QUIRE_KERNELS_AMX_TILE_H
#define QUIRE_KERNELS_AMX_TILE_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/tiling/unroll.h"

#define TILE_ROWS 16u
#define SOON      2u

/* The operand of LDTILECFG. Source: Intel SDM volume 1, chapter 18. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

INLINE void tile_configure(const struct tile_config *c)
{
    __asm__ volatile("" ::"r"(c) : "memory"); /* gcc 12 assumes that only 8 bytes of it are read */
    _tile_loadconfig(c);
}

/* Prefetch the lines of a tile of 16 rows. */
INLINE void tile_soon(const void *p, size_t line_bytes)
{
    UNROLL
    for (uint32_t i = 0; i < TILE_ROWS; i++)
        _mm_prefetch((const char *)p + i * line_bytes, _MM_HINT_T0);
}

/* Number of rows that are multiplied by half panels, 32 rows at a time; the rest, 16 or fewer, by
 * whole panels. */
static inline size_t rows_by_halves(size_t n_row)
{
    return n_row % 32 > TILE_ROWS ? n_row : n_row / 32 * 32;
}

/* Rows of a block of at most `most`: the fewest blocks, of equal size, because a short last block
 * would read all weights for few rows. */
static inline size_t rows_even(size_t n_row, size_t most)
{
    const size_t n_block = (n_row + most - 1) / most;
    return ((n_row + n_block - 1) / n_block + 31) / 32 * 32;
}

#endif
