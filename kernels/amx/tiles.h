/* SPDX-License-Identifier: Apache-2.0 */
/* tiles - how the AMX kernels use the eight tile registers, and the walk around them.
 *
 * A panel of 64 outputs is four tiles of weights; 1 to 16 rows of x make one tile; four tiles hold
 * the sums:
 *
 *     tile 0 1 2 3   sums [rows][16], outputs 0, 16, 32, 48 of the panel on
 *     tile 4         x    [rows][64 bytes of K]
 *     tile 5 6       W    [16 groups of 4 bytes along K][16 outputs], panel lines 256 bytes apart
 *
 * The packed layouts of ops.h and ops_quant.h are what the tile instructions read, without another
 * step. A tile instruction takes as long for one row as for three, and from then on by rows.
 *
 * Threads: a thread sets up its own registers (tiles_rows) and gives them back (tiles_end). */
#ifndef QUIRE_KERNELS_AMX_TILES_H
#define QUIRE_KERNELS_AMX_TILES_H
#include <immintrin.h>
#include <stdint.h>
#include "kernels/unroll.h"
#if defined(__AMX_TILE__)

#define TILE_ROWS  16u
#define TILE_BYTES 64u /* of a tile's row */

/* What LDTILECFG reads. Source: Intel SDM volume 1, chapter 18. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Set the tiles up for `rows` rows of x; their contents are lost. */
INLINE void tiles_rows(uint32_t rows)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = TILE_BYTES;
        c.rows[i] = (uint8_t)(i < 5 ? rows : TILE_ROWS);
    }
    _tile_loadconfig(&c);
}

INLINE void tiles_end(void)
{
    _tile_release();
}

INLINE void tiles_sums_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}
/* sum: [rows][64] of 4 bytes. */
INLINE void tiles_sums_load(const float *sum)
{
    _tile_loadd(0, sum, 256);
    _tile_loadd(1, sum + 16, 256);
    _tile_loadd(2, sum + 32, 256);
    _tile_loadd(3, sum + 48, 256);
}
INLINE void tiles_sums_store(float *sum)
{
    _tile_stored(0, sum, 256);
    _tile_stored(1, sum + 16, 256);
    _tile_stored(2, sum + 32, 256);
    _tile_stored(3, sum + 48, 256);
}

#endif
#endif
