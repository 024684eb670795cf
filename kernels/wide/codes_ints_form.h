/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints_form - what the parts of codes_ints.h share: how codes are stored, a block of inputs
 * of a panel, a tile of rows, and sums in registers.
 * Threads: no state. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_FORM_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_FORM_H
#include <stdbool.h>
#include "kernels/tiling/codes_scratch.h"
#ifdef INTS

#define CODES_LINE       (4 * KERN_PANEL) /* bytes: 4 of each output */
#define CODES_TILE       6                /* rows */
#define CODES_PLANE_ROWS 2                /* that are multiplied by planes */
#define CODES_CHAIN      32u              /* inputs of a group that are */
#define CODES_WIDE_ROWS  2                /* of which registers hold the sums of 4 * INTS outputs */

/* How stored codes become codes above their zero, which are multiplied: pairs of bytes, of halves
 * of bytes, and of these by a table, by x of 16 bits; or halves, or bytes of 6 bits, by two planes
 * of x. */
enum codes_form {
    CODES_OF_BYTES,
    CODES_OF_HALVES,
    CODES_OF_TABLE,
    CODES_OF_PLANES,
    CODES_OF_BYTE_PLANES, /* of codes_scaled.h */
    CODES_FORMS
};

struct codes_block { /* of a panel: KERN_CODES_X inputs, or what is left */
    const struct packed_codes *form;
    struct codes_ints_scratch *s;
    const struct codes_inputs *x; /* [n_row] */
    const uint8_t *supers, *groups;
    const uint8_t *table;          /* [16] codes of CODES_OF_TABLE */
    size_t ahead;                  /* bytes that are prefetched ahead */
    size_t group_bytes, scales_at; /* of a group */
    uint32_t n, n_row;             /* n: inputs */
    bool first;                    /* of the panel: sums begin with 0 */
};
struct codes_tile { /* constants where they are inlined, but for the strip and the group */
    int rows, n_vec;
    uint32_t row, strip; /* first row; first output */
    uint32_t group;
};
struct codes_int_sums {
    ints v[CODES_TILE][KERN_PANEL / INTS];
};

#endif
#endif
