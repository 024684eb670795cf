/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scratch - scratch of linear_codes; private to kernels/. The loops are in
 * wide/linear_codes.h and wide/codes_few.h (products of f32) and in wide/codes_ints.h (by_ints). */
#ifndef QUIRE_KERNELS_TILING_CODES_SCRATCH_H
#define QUIRE_KERNELS_TILING_CODES_SCRATCH_H
#include "kernels/ops/ops_codes.h"
#include "kernels/tiling/linear_tile.h"
#include "kernels/tiling/split.h"

#define CODES_SLICE 64u /* inputs that are unpacked at a time: 16 KiB of f32, half of a small L1 */
#define CODES_FEW   4u  /* rows for which nothing is unpacked to memory (wide/codes_few.h) */
#define CODES_CHUNK \
    256u /* inputs of them at a time: whole groups, and a block of KERN_SCALES_BY_256 */

struct codes_scratch {
    _Alignas(64) float w[CODES_SLICE][KERN_PANEL];           /* a slice of a panel, unpacked */
    float x[LINEAR_TILE][CODES_SLICE];                       /* rows of bf16, widened */
    float few[CODES_FEW][CODES_CHUNK];                       /* the same of few rows */
    _Alignas(64) float scales[KERN_PANEL], mins[KERN_PANEL]; /* of a group, of few rows */
    _Alignas(64) float sum[KERN_LINEAR_ROWS][KERN_PANEL];
};

#define CODES_GROUP_MIN 16u
#define CODES_GROUP_MAX 128u
#define CODES_GROUPS    (KERN_CODES_X / CODES_GROUP_MIN) /* of KERN_CODES_X inputs, at most */
#define CODES_X_KEPT    1536u /* of struct codes_inputs: 96 rows of 4096 inputs */

struct codes_inputs { /* KERN_CODES_X inputs of a row, rounded (ops_codes.h) */
    int16_t n[KERN_CODES_X];
    float sum[CODES_GROUPS];         /* of the n of each group */
    int32_t all[CODES_GROUPS];       /* the same */
    int16_t digits[CODES_GROUPS][2]; /* the same: 256 * the second + the first */
    int32_t start[CODES_GROUPS];     /* - zero * sum: codes are stored as value + zero */
    float unit;
    float unused[15]; /* keeps rows at different sets of a cache */
};

struct codes_ints_scratch { /* every member starts at a multiple of 64 bytes */
    float sum[KERN_LINEAR_ROWS][KERN_PANEL];
    int32_t products[LINEAR_TILE][KERN_PANEL];     /* sums of a group, of a tile of rows */
    float part[KERN_LINEAR_ROWS][KERN_PANEL];      /* of KERN_CODES_X inputs */
    float scale[KERN_PANEL], min[KERN_PANEL];      /* of a group */
    int16_t w[CODES_GROUP_MAX / 2][KERN_PANEL][2]; /* a group unpacked: codes of two neighbours */
    struct codes_inputs x[CODES_X_KEPT]; /* by KERN_CODES_X inputs, then by row of the block */
};

#endif
