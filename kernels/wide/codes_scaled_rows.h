/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scaled_rows - KERN_CODES_X inputs of a panel by products of scaled integers
 * (codes_scaled.h), by the number of rows and the form of codes, each its own function.
 * Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_SCALED_ROWS_H
#define QUIRE_KERNELS_WIDE_CODES_SCALED_ROWS_H
#include "kernels/wide/codes_scaled_few.h"
#include "kernels/wide/codes_scaled_tiles.h"
#ifdef INTS

#define FEW(rows)                                                               \
    static void scaled_halves_##rows(const struct codes_block *b, uint32_t row) \
    {                                                                           \
        scaled_few(b, row, rows, CODES_OF_PLANES);                              \
    }                                                                           \
    static void scaled_bytes_##rows(const struct codes_block *b, uint32_t row)  \
    {                                                                           \
        scaled_few(b, row, rows, CODES_OF_BYTE_PLANES);                         \
    }
#define TILE(rows)                                                                        \
    static void scaled_tile_##rows(const struct codes_block *b, uint32_t row, uint32_t k) \
    {                                                                                     \
        const struct codes_block local = *b;                                              \
        scaled_tile(&local, row, rows, k);                                                \
    }                                                                                     \
    static void scaled_join_##rows(const struct codes_block *b, uint32_t row)             \
    {                                                                                     \
        const struct codes_block local = *b;                                              \
        if (b->form->has_min)                                                             \
            scaled_join_tile(&local, row, rows, true);                                    \
        else                                                                              \
            scaled_join_tile(&local, row, rows, false);                                   \
    }
FEW(1)
FEW(2)
FEW(3)
FEW(4)
FEW(5)
FEW(6)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
static void (*const scaled_fews[2][CODES_TILE])(const struct codes_block *, uint32_t row) = {
    {scaled_halves_1, scaled_halves_2, scaled_halves_3, scaled_halves_4, scaled_halves_5,
     scaled_halves_6},
    {scaled_bytes_1, scaled_bytes_2, scaled_bytes_3, scaled_bytes_4, scaled_bytes_5,
     scaled_bytes_6},
};
/* of more than SCALED_FEW rows; tiles of equal size, so none has fewer than 3 */
static const struct {
    void (*slice)(const struct codes_block *, uint32_t row, uint32_t k);
    void (*join)(const struct codes_block *, uint32_t row);
} scaled_tiles[CODES_TILE + 1] = {
    [3] = {scaled_tile_3, scaled_join_3},
    [4] = {scaled_tile_4, scaled_join_4},
    [5] = {scaled_tile_5, scaled_join_5},
    [6] = {scaled_tile_6, scaled_join_6},
};
#undef FEW
#undef TILE

static void scaled_unpack_halves(const struct codes_block *b, const uint8_t *at)
{
    scaled_unpack(b, at, CODES_OF_HALVES);
}

static void scaled_unpack_bytes(const struct codes_block *b, const uint8_t *at)
{
    scaled_unpack(b, at, CODES_OF_BYTES);
}

INLINE void scaled_rows(const struct codes_block *b)
{
    const bool bytes = codes_is_bytes(b->form);
    const uint32_t n_tile = (b->n_row + CODES_TILE - 1) / CODES_TILE;
    if (b->n_row <= SCALED_FEW) {
        for (uint32_t i = 0; i < n_tile; i++) {
            const uint32_t row = b->n_row * i / n_tile, end = b->n_row * (i + 1) / n_tile;
            scaled_fews[bytes][end - row - 1](b, row);
        }
        return;
    }
    for (uint32_t k = 0; k < KERN_CODES_X; k += SCALED_SLICE) {
        const uint8_t *at = b->groups + k / b->form->group * b->group_bytes;
        (bytes ? scaled_unpack_bytes : scaled_unpack_halves)(b, at);
        for (uint32_t i = 0; i < n_tile; i++) {
            const uint32_t row = b->n_row * i / n_tile, end = b->n_row * (i + 1) / n_tile;
            scaled_tiles[end - row].slice(b, row, k);
        }
    }
    if (b->form->has_min)
        scaled_unpack_mins(b);
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t row = b->n_row * i / n_tile, end = b->n_row * (i + 1) / n_tile;
        scaled_tiles[end - row].join(b, row);
    }
}

#endif
#endif
