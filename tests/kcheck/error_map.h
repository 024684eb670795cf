/* SPDX-License-Identifier: Apache-2.0 */
/* error_map - where the wrong elements of a matrix lie, by blocks of 8 rows x 64 columns, which is
 * how kernels divide their outputs: a wrong fragment, tile, swizzle or edge has its own picture. */
#ifndef QUIRE_TESTS_KCHECK_ERROR_MAP_H
#define QUIRE_TESTS_KCHECK_ERROR_MAP_H
#include <stddef.h>
#include <stdint.h>

#define ERROR_MAP_ROWS 8u /* of a block */
#define ERROR_MAP_COLS 64u
#define ERROR_MAP_SIDE 48u /* blocks in each direction; the last ones count what lies further */

struct error_map {
    uint32_t n_wrong;
    uint16_t block[ERROR_MAP_SIDE][ERROR_MAP_SIDE]; /* wrong elements, at most all of a block */
};

void error_map_add(struct error_map *m, size_t row, size_t col);
/* A line for each row of blocks that has a wrong element; a block is '.' (none), 1 … 9 (tenths of
 * it) or '#' (all). text: [n] bytes, ends with 0; rows that do not fit are left out. */
void error_map_print(const struct error_map *m, size_t n_row, size_t n_col, char *text, size_t n);
#endif
