/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scratch - scratch of linear_codes; private to kernels/. The loops are in
 * wide/linear_codes.h and wide/codes_few.h. */
#ifndef QUIRE_KERNELS_TILING_CODES_SCRATCH_H
#define QUIRE_KERNELS_TILING_CODES_SCRATCH_H
#include "kernels/ops/ops.h"
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

#endif
