/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scaled - products of scaled integers for codes_ints.h (codes_is_scaled): blocks of
 * KERN_SCALES_BY_256 whose groups' scales are integers too, so that all of a chunk is summed in
 * int32, and floats are touched once a chunk (formula: ops_codes.h).
 *
 * Few rows: a tile of all rows multiplies codes as they are stored, by two planes of x; the sums of
 * a group, times its scale, are added to those of the chunk. More rows: the products value * scale,
 * of 16 bits, of SCALED_SLICE inputs of the panel are computed once, into the first-level cache;
 * every tile multiplies them by x of 16 bits, and no group ends there. Here is what both share;
 * codes_scaled_few.h, codes_scaled_tiles.h, and codes_scaled_rows.h, which chooses.
 * Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_SCALED_H
#define QUIRE_KERNELS_WIDE_CODES_SCALED_H
#include <string.h>
#include "kernels/wide/codes_ints_sums.h"
#ifdef INTS

#define SCALED_FEW   (INTS_STRIP == 4 ? 16u : 8u) /* rows of which nothing is unpacked to memory */
#define SCALED_SLICE 128u                         /* inputs, whole chunks: 16 KiB of products */

/* A chunk's sums onto the part. */
INLINE void scaled_part(float *part, ints sum, const bool first)
{
    const floats f = ints_floats(sum);
    floats_store(part, first ? f : floats_add(f, floats_load(part)));
}

/* A row's part, and its mins, onto its sum. */
INLINE void scaled_join(const struct codes_block *b, uint32_t row, uint32_t o, ints mins,
                        const bool has_min)
{
    const float *d = (const float *)(const void *)b->supers;
    float *sum = b->s->sum[row] + o;
    const floats scale = floats_load(d + o);
    floats part = floats_load(b->s->part[row] + o);
    if (has_min)
        part =
            floats_fma(scale, part, floats_mul(floats_load(d + KERN_PANEL + o), ints_floats(mins)));
    else
        part = floats_mul(scale, part);
    floats_store(sum, floats_fma(floats_set(b->x[row].unit), part,
                                 b->first ? floats_set(0) : floats_load(sum)));
}

#endif
#endif
