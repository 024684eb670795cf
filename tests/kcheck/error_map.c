/* SPDX-License-Identifier: Apache-2.0 */
#include "error_map.h"
#include <stdio.h>

#define LINE_BYTES (ERROR_MAP_SIDE + 32)

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

void error_map_add(struct error_map *m, size_t row, size_t col)
{
    const size_t r = least(row / ERROR_MAP_ROWS, ERROR_MAP_SIDE - 1);
    const size_t c = least(col / ERROR_MAP_COLS, ERROR_MAP_SIDE - 1);
    m->n_wrong++;
    if (m->block[r][c] < ERROR_MAP_ROWS * ERROR_MAP_COLS)
        m->block[r][c]++;
}

/* Of a block at the edge all is less. */
static char mark(uint32_t n_wrong, size_t n)
{
    if (n_wrong == 0)
        return '.';
    if (n_wrong >= n)
        return '#';
    const size_t tenths = n_wrong * 10 / n;
    return (char)('0' + (tenths ? tenths : 1));
}

void error_map_print(const struct error_map *m, size_t n_row, size_t n_col, char *text, size_t n)
{
    const size_t rows = least((n_row + ERROR_MAP_ROWS - 1) / ERROR_MAP_ROWS, ERROR_MAP_SIDE);
    const size_t cols = least((n_col + ERROR_MAP_COLS - 1) / ERROR_MAP_COLS, ERROR_MAP_SIDE);
    size_t at = 0;
    text[0] = 0;
    for (size_t r = 0; r < rows && at + LINE_BYTES <= n; r++) {
        const size_t high = least(n_row - r * ERROR_MAP_ROWS, ERROR_MAP_ROWS);
        uint32_t n_wrong = 0;
        for (size_t c = 0; c < cols; c++)
            n_wrong += m->block[r][c];
        if (!n_wrong)
            continue;
        at += (size_t)snprintf(text + at, n - at, "  rows %6zu: ", r * ERROR_MAP_ROWS);
        for (size_t c = 0; c < cols; c++)
            text[at++] =
                mark(m->block[r][c], high * least(n_col - c * ERROR_MAP_COLS, ERROR_MAP_COLS));
        text[at++] = '\n';
        text[at] = 0;
    }
}
