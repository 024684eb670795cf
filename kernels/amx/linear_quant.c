/* SPDX-License-Identifier: Apache-2.0 */
/* linear_quant by TDPBSUD, 16 rows x 16 outputs x 64 inputs an instruction; up to FEW rows, which
 * wait for memory anyway, it is linear_quant_avx512_vnni. The sums are exact in both. */
#include "kernels/amx/tiles.h"
#include "kernels/quant_walk.h"
#include "kernels/variants.h"

#define FEW 4u /* rows */

/* What this thread's tiles are set up for; 0 outside of a call. */
static _Thread_local uint32_t rows_now;

INLINE void step(const struct linear_tile *t, uint32_t k)
{
    const char *w = (const char *)t->w + (size_t)k * KERN_PANEL;
    linear_ahead(t, (size_t)k * KERN_PANEL, 64);
    _tile_loadd(4, (const char *)t->x + k, t->x_bytes);
    _tile_loadd(5, w, 256);
    _tile_loadd(6, w + 64, 256);
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(5, w + 128, 256);
    _tile_dpbsud(1, 4, 6);
    _tile_loadd(6, w + 192, 256);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbsud(3, 4, 6);
}

static void tile(const struct linear_tile *t, uint32_t rows)
{
    if (rows != rows_now)
        tiles_rows(rows);
    rows_now = rows;
    if (t->first)
        tiles_sums_zero();
    else
        tiles_sums_load(t->sum);
    for (uint32_t k = 0; k < t->n_k; k += TILE_BYTES)
        step(t, k);
    tiles_sums_store(t->sum);
}

#define TILE(rows)                                       \
    static void tile_##rows(const struct linear_tile *t) \
    {                                                    \
        tile(t, rows);                                   \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)
TILE(15)
TILE(16)
#undef TILE

static linear_tile_fn *const tiles[TILE_ROWS] = {
    tile_1, tile_2,  tile_3,  tile_4,  tile_5,  tile_6,  tile_7,  tile_8,
    tile_9, tile_10, tile_11, tile_12, tile_13, tile_14, tile_15, tile_16};

void linear_quant_amx(const struct linear_quant_args *a, const struct kern_exec *x)
{
    static const struct quant_tiles form = {tiles, TILE_ROWS, QUANT_ZERO};
    if (a->n_row <= FEW) {
        linear_quant_avx512_vnni(a, x);
        return;
    }
    quant_walk(a, x, &form);
    tiles_end();
    rows_now = 0;
}
