/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int4 by TDPBSUD; formula and order: ops_int4.h, loops: wide/int4.h.
 *
 * Each group is unpacked once for a block of rows into 8 KiB of L1, in the lines that tile
 * registers load. A tile instruction takes 64 bytes of K, or 32 where that is the group. 17 to 32
 * rows take half a panel at a time (tiles 0 … 3 sums, 4 5 x, 6 7 W), up to 16 rows all of it: as
 * tiles.h, but the sums of a group end with the group. */
#include <immintrin.h>
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"
#define INTS_TILES_ONLY
#include "kernels/wide/linear_int4.h"

#define FEW       4u /* rows; a group's sums are exact, so any instruction gives the same bits */
#define TILE_ROWS 16u
#define LINE      256 /* bytes of a panel's line: 64 outputs x 4 of K */

/* What LDTILECFG reads. Source: Intel SDM volume 1, chapter 18. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* step: bytes of K in a tile; low, high: rows of the upper and of the lower half of sums. */
static void set_up(uint32_t step, uint32_t low, uint32_t high)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool of_w = i >= 6 || (!high && i == 5), of_x = i == 4 || (high && i == 5);
        bool lower = high && (i == 2 || i == 3 || i == 5);
        c.row_bytes[i] = (uint16_t)(of_x ? step : 64);
        c.rows[i] = (uint8_t)(of_w ? step / 4 : lower ? high : low);
    }
    __asm__ volatile("" ::"r"(&c) : "memory"); /* gcc 12 thinks 8 bytes of it are read */
    _tile_loadconfig(&c);
}

static void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* 17 to 32 rows from `row` of the block on, outputs 32 half … */
static void half_panel(const struct int4_part *p, uint32_t row, uint32_t step, uint32_t half)
{
    const size_t x_bytes = p->a->x_stride;
    const int8_t *x = int4_x(p, row);
    const uint8_t *w = p->s->bytes + 128 * (size_t)half;
    int32_t *sum = &p->s->sum[0][32 * half];
    zero_sums();
    for (uint32_t k = 0; k < p->a->w.group; k += step, w += (size_t)step / 4 * LINE) {
        _tile_loadd(6, w, LINE);
        _tile_loadd(4, x + k, x_bytes);
        _tile_loadd(7, w + 64, LINE);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, x + k + TILE_ROWS * x_bytes, x_bytes);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, sum, LINE);
    _tile_stored(1, sum + 16, LINE);
    _tile_stored(2, sum + TILE_ROWS * KERN_PANEL, LINE);
    _tile_stored(3, sum + TILE_ROWS * KERN_PANEL + 16, LINE);
}

/* Up to 16 rows, all of the panel. */
static void whole_panel(const struct int4_part *p, uint32_t row, uint32_t step)
{
    const int8_t *x = int4_x(p, row);
    const uint8_t *w = p->s->bytes;
    int32_t *sum = p->s->sum[0];
    zero_sums();
    for (uint32_t k = 0; k < p->a->w.group; k += step, w += (size_t)step / 4 * LINE) {
        _tile_loadd(4, x + k, p->a->x_stride);
        _tile_loadd(5, w, LINE);
        _tile_loadd(6, w + 64, LINE);
        _tile_dpbsud(0, 4, 5);
        _tile_loadd(7, w + 128, LINE);
        _tile_dpbsud(1, 4, 6);
        _tile_loadd(5, w + 192, LINE);
        _tile_dpbsud(2, 4, 7);
        _tile_dpbsud(3, 4, 5);
    }
    _tile_stored(0, sum, LINE);
    _tile_stored(1, sum + 16, LINE);
    _tile_stored(2, sum + 32, LINE);
    _tile_stored(3, sum + 48, LINE);
}

static void int4_tiles(const struct int4_part *p)
{
    const uint32_t step = p->a->w.group < 64 ? p->a->w.group : 64;
    uint32_t before = 0; /* rows the tiles are set up for */
    int4_unpack(p);
    for (uint32_t row = 0; row < p->n_row; row += INT4_SUM_ROWS) {
        uint32_t n = p->n_row - row < INT4_SUM_ROWS ? p->n_row - row : INT4_SUM_ROWS;
        if (n != before)
            set_up(step, n < TILE_ROWS ? n : TILE_ROWS, n > TILE_ROWS ? n - TILE_ROWS : 0);
        before = n;
        if (n <= TILE_ROWS) {
            whole_panel(p, row, step);
            for (uint32_t r = 0; r < n; r++)
                int4_add(p, row + r, p->s->sum[r], 0, 4);
            continue;
        }
        for (uint32_t half = 0; half < 2; half++) {
            half_panel(p, row, step, half);
            for (uint32_t r = 0; r < n; r++)
                int4_add(p, row + r, p->s->sum[r], 32 * half, 2);
        }
    }
}

void linear_int4_amx(const struct linear_int4_args *a, const struct kern_exec *x)
{
    if (a->by.n_row <= FEW) { /* they wait for memory */
        linear_int4_avx512_vnni(a, x);
        return;
    }
    int4_walk(a, x, int4_tiles);
    _tile_release();
}
