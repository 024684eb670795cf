/* SPDX-License-Identifier: Apache-2.0 */
/* int4_group - groups of 4-bit weights and a tile of rows: unpacking and addresses. The including
 * file defines registers of int32 and of f32:
 *
 *     ints, INTS (int32 in one), ints_set, ints_load, ints_store, ints_add
 *     ints_low, ints_high: the low and the high halves of bytes
 *     floats, floats_set, floats_load, floats_load_f16, floats_load_i8, floats_store: the same
 *     lanes as f32
 *     ints_group(acc, sum, scale, zero, x): fma(scale, sum - zero * x, acc)
 *
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_INT4_GROUP_H
#define QUIRE_KERNELS_WIDE_INT4_GROUP_H
#include <string.h>
#include "kernels/reading.h"
#include "kernels/wide/int4.h"
#ifdef INTS

#define LINE     (4 * KERN_PANEL) /* bytes */
#define INT4_FEW INT4_SUM_ROWS    /* rows that unpack in registers */

struct int4_tile { /* constants where they are inlined, but for the strip */
    int rows, n_vec;
    uint32_t strip; /* first output */
};

/* Bytes prefetched ahead by a tile that unpacks. One of 3 rows and more multiplies longer than it
 * reads, and then the prefetchers of a processor that needs no others are late: `slow` bytes. */
INLINE size_t int4_ahead(int rows, size_t slow)
{
    const size_t ahead = kern_ahead(KERN_PRODUCT_INT4);
    return rows > 2 && ahead == 0 ? slow : ahead;
}

INLINE ints int4_load(const uint8_t *p)
{
    return ints_load((const int32_t *)(const void *)p);
}

INLINE ints int4_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return ints_set(four);
}

/* The slice into p->s->bytes. */
INLINE void int4_unpack(const struct int4_part *p)
{
    const uint32_t n_line = p->a->w.group / 8;
    uint8_t *to = p->s->bytes;
    for (uint32_t g = 0; g < p->n_group; g++) {
        const uint8_t *w = p->w + g * int4_group_bytes(p->a->w.group);
        for (uint32_t line = 0; line < n_line; line++, to += 2 * (size_t)LINE)
            for (uint32_t i = 0; i < LINE; i += INTS * 4) {
                ints both = int4_load(w + (size_t)line * LINE + i);
                ints_store((int32_t *)(void *)(to + i), ints_low(both));
                ints_store((int32_t *)(void *)(to + LINE + i), ints_high(both));
            }
    }
}

/* The rows of a tile; offsets are in registers (linear_row). */
struct int4_rows {
    const int8_t *x, *more; /* of the first row, and of row LINEAR_TILE */
    size_t at[LINEAR_TILE];
};

INLINE struct int4_rows int4_rows(const struct int4_part *p, uint32_t row, const int rows)
{
    struct int4_rows x = {.x = int4_x(p, row)};
    x.more = x.x + LINEAR_TILE * p->a->x_stride;
    UNROLL
    for (int r = 0; r < (rows < (int)LINEAR_TILE ? rows : (int)LINEAR_TILE); r++)
        x.at[r] = linear_row(p->a->x_stride, r);
    return x;
}

/* k further along K. */
INLINE void int4_on(struct int4_rows *x, int k)
{
    x->x += k;
    x->more += k;
}

#endif
#endif
