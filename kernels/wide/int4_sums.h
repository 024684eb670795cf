/* SPDX-License-Identifier: Apache-2.0 */
/* int4_sums - the sums of one group of 4-bit weights for a tile of rows. The including file defines
 * the names that wide/linear_int8.h requires except INTS_WEIGHT_OFFSET (ints_dot multiplies w as
 * stored, 0 … 15), and
 *
 *     ints_low, ints_high: the low and the high halves of bytes; ints_add
 *     floats, floats_set, floats_load, floats_store: the same lanes as f32
 *     ints_group(acc, sum, scale, zero, x): fma(scale, sum - zero * x, acc)
 *
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_INT4_SUMS_H
#define QUIRE_KERNELS_WIDE_INT4_SUMS_H
#include <string.h>
#include "kernels/wide/int4.h"
#ifdef INTS

#define LINE     (4 * KERN_PANEL) /* bytes */
#define INT4_FEW INT4_SUM_ROWS    /* rows that unpack in registers */

struct int4_tile { /* constants where they are inlined, but for the strip */
    int rows, n_vec;
    uint32_t strip; /* first output */
};
struct int4_sums {
    ints v[INT4_FEW][KERN_PANEL / INTS];
};

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

/* A group into p->s->bytes. */
INLINE void int4_unpack(const struct int4_part *p)
{
    for (uint32_t line = 0; line < p->a->w.group / 8; line++)
        for (uint32_t i = 0; i < LINE; i += INTS * 4) {
            uint8_t *to = p->s->bytes + 2 * (size_t)line * LINE + i;
            ints both = int4_load(p->w + (size_t)line * LINE + i);
            ints_store((int32_t *)(void *)to, ints_low(both));
            ints_store((int32_t *)(void *)(to + LINE), ints_high(both));
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

/* Four neighbours along K, k and on, of the strip's outputs for all rows of the tile. */
INLINE void int4_dot(struct int4_sums *s, struct int4_tile t, const ints *w,
                     const struct int4_rows *x, int k)
{
    UNROLL
    for (int r = 0; r < t.rows; r++) {
        const int8_t *from = r < (int)LINEAR_TILE ? x->x : x->more;
        const ints four = int4_four(from + x->at[r % (int)LINEAR_TILE] + k);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s->v[r][j] = ints_dot(s->v[r][j], w[j], four);
    }
}

/* k further along K. */
INLINE void int4_on(struct int4_rows *x, int k)
{
    x->x += k;
    x->more += k;
}

/* From the group as it is stored. One row uses two chains of sums per output, to hide their
 * latency. */
INLINE void sums_packed(struct int4_sums *s, const struct int4_part *p, struct int4_tile t,
                        struct int4_rows x)
{
    struct int4_sums more;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        more.v[0][j] = ints_set(0);
    for (uint32_t k = 0; k < p->a->w.group; k += 8) {
        const uint8_t *w = p->w + (size_t)(k / 8) * LINE + (size_t)t.strip * 4;
        ints v[KERN_PANEL / INTS];
        for (uint32_t i = 0; t.strip == 0 && i < LINE; i += 64)
            __builtin_prefetch(w + LINEAR_PREFETCH + i);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_low(int4_load(w + (size_t)j * INTS * 4));
        int4_dot(s, t, v, &x, 0);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_high(int4_load(w + (size_t)j * INTS * 4));
        int4_dot(t.rows == 1 ? &more : s, t, v, &x, 4);
        int4_on(&x, 8);
    }
    if (t.rows > 1)
        return;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        s->v[0][j] = ints_add(s->v[0][j], more.v[0][j]);
}

/* From p->s->bytes; prefetches `next`. */
INLINE void sums_bytes(struct int4_sums *s, const struct int4_part *p, struct int4_tile t,
                       struct int4_rows x, struct linear_next next)
{
    for (uint32_t k = 0; k < p->a->w.group; k += 4) {
        const uint8_t *w = p->s->bytes + (size_t)(k / 4) * LINE + (size_t)t.strip * 4;
        ints v[KERN_PANEL / INTS];
        if (t.strip == 0)
            linear_prefetch(next.p, next.step, 1);
        next.p += next.step;
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = int4_load(w + (size_t)j * INTS * 4);
        int4_dot(s, t, v, &x, 0);
        int4_on(&x, 4);
    }
}

/* Through memory: gcc 12 spills sums inside the loop over K when the arithmetic follows it. */
INLINE void int4_store(const struct int4_part *p, const struct int4_sums *s, struct int4_tile t)
{
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        ints_store(&p->s->sum[r][t.strip] + j * INTS, s->v[r][j]);
}

/* The group's sums onto acc of the block's rows from `row` on. */
INLINE void int4_add(const struct int4_part *p, struct int4_tile t, uint32_t row, const bool first)
{
    floats scale[KERN_PANEL / INTS], zero[KERN_PANEL / INTS];
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        scale[j] = floats_load(p->s->scale + t.strip + j * INTS);
        zero[j] = floats_load(p->s->zero + t.strip + j * INTS);
    }
    for (uint32_t r = 0; r < (uint32_t)t.rows; r++) {
        const floats x = floats_set(p->x_sum[row + r]);
        const int32_t *sum = &p->s->sum[r][t.strip];
        float *acc = &p->s->acc[row + r][t.strip];
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            const floats onto = first ? floats_set(0) : floats_load(acc + j * INTS);
            floats_store(acc + j * INTS,
                         ints_group(onto, ints_load(sum + j * INTS), scale[j], zero[j], x));
        }
    }
}

#endif
#endif
