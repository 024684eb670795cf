/* SPDX-License-Identifier: Apache-2.0 */
/* int4_scratch - scratch of linear_w4a8 and the arguments of its kernel for some groups; private to
 * kernels/. The loops are in wide/int4.h, and with AMX tiles in amx/linear_w4a8.c:
 *
 *     for row blocks of at most KERN_LINEAR_ROWS    W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for slices of groups                      unpacked into bytes, for many rows
 *           for tiles of rows                       a part of the next slice is prefetched
 *             for groups
 *               sums of integers
 *               acc += scale * (sum - zero * sum of x)
 *             of the last slice: * the row's scale + bias, + y, store
 *
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_TILING_INT4_SCRATCH_H
#define QUIRE_KERNELS_TILING_INT4_SCRATCH_H
#include "kernels/ops/int4_layout.h"
#include "kernels/tiling/slice.h"
#include "kernels/tiling/split.h"

#define INT4_SUM_ROWS 12u   /* of a tile, at most */
#define INT4_ZERO_X   16u   /* zeros of a table, 0 … 15 */
#define INT4_TABLES   2048u /* rows times groups whose tables are kept: 128 KiB */
#define INT4_TABLES_K 1024u /* inputs of a slice with tables, at most */
#define INT4_X_SUMS   256u  /* groups whose sums of x are computed at once */
#define INT4_SLICE_K  (KERN_SLICE_LARGE / KERN_PANEL) /* inputs of an unpacked slice, at most */

struct int4_scratch { /* every member starts at a multiple of 64 bytes */
    float acc[KERN_LINEAR_ROWS][KERN_PANEL];
    int32_t sum[INT4_SUM_ROWS][KERN_PANEL];
    float scale[KERN_PANEL], zero[KERN_PANEL];
    int32_t zero_x[INT4_TABLES][INT4_ZERO_X];    /* [groups][rows], each -zero * the sum of x */
    uint8_t bytes[INT4_SLICE_K * KERN_PANEL];    /* a slice unpacked: [k/4][64][4] */
    float x_sum[INT4_X_SUMS * KERN_LINEAR_ROWS]; /* sums of x: [groups][rows of the block] */
};

#define INT4_TILES_ROWS   512u /* of a block, at most */
#define INT4_TILES_UNITS  (INT4_TILES_ROWS / 32 * 2 + 1)
#define INT4_TILES_K      4096u /* of a slice, at most: 256 KiB of weights */
#define INT4_TILES_GROUPS 4u    /* added at once, at most */
#define INT4_TILES_SUMS   1024u /* of a unit: 32 rows x 32 outputs or 16 x 64 */

struct int4_tiles_scratch { /* of amx/linear_w4a8.c */
    int32_t sum[2][INT4_TILES_GROUPS][INT4_TILES_SUMS];
    float acc[INT4_TILES_UNITS][INT4_TILES_SUMS];
    float scale[INT4_TILES_K / KERN_INT4_GROUP_MIN][KERN_PANEL];
    uint8_t bytes[INT4_TILES_K * KERN_PANEL]; /* a slice unpacked: [k/4][64][4] */
};

struct int4_part { /* a block of rows times a slice of a panel */
    const struct linear_int8_args *a;
    const int16_t *sums; /* of all rows of x */
    struct int4_scratch *s;
    const uint8_t *w;    /* the slice's first group */
    const uint8_t *next; /* the next slice, to be prefetched */
    size_t row;          /* the block's first */
    uint32_t n_row, k;   /* k: the slice's first input */
    uint32_t n_group;    /* of the slice */
    uint32_t n_next;     /* of the next one, at most */
    uint32_t o;          /* the panel's first output */
    const float *x_sum;  /* [n_group][n_row] */
    bool is_first;       /* the block's first panel */
};

#endif
