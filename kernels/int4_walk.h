/* SPDX-License-Identifier: Apache-2.0 */
/* int4_walk - what linear_int4 keeps in scratch, and one group's work as a variant sees it; private
 * to kernels/. The loops are in wide/int4.h:
 *
 *     for row blocks of KERN_LINEAR_ROWS       W is read once per block
 *       for panels of this thread              one contiguous stream of memory
 *         for groups                           scales and zeros to f32
 *           sums of integers, every row        the variant's
 *           acc += scale * (sum - zero * sum of x)
 *         * the row's scale + bias, + y, store
 *
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_INT4_WALK_H
#define QUIRE_KERNELS_INT4_WALK_H
#include "kernels/int4_layout.h"
#include "kernels/split.h"

#define INT4_SUM_ROWS 32u /* rows whose sums a variant makes at a time, at most */

struct int4_scratch { /* every member starts at a multiple of 64 bytes */
    float acc[KERN_LINEAR_ROWS][KERN_PANEL];
    int32_t sum[INT4_SUM_ROWS][KERN_PANEL];
    float scale[KERN_PANEL], zero[KERN_PANEL];
    uint8_t bytes[INT4_GROUP_MAX * KERN_PANEL]; /* a group unpacked: [group/4][64][4] */
};

struct int4_part { /* a block of rows times one group of a panel */
    const struct linear_quant_args *a;
    const int16_t *sums; /* of all rows of x */
    struct int4_scratch *s;
    const uint8_t *w;    /* the group */
    size_t row;          /* the block's first */
    uint32_t n_row, k;   /* k: the group's first input */
    uint32_t n_out_here; /* outputs of this panel that exist */
};

#endif
