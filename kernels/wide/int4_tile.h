/* SPDX-License-Identifier: Apache-2.0 */
/* int4_tile - the micro-kernel of linear_w4a8 on registers of int32 sums: one group of 4-bit
 * weights times a tile of rows. The including file defines the names of int4_group.h and
 * ints_dot(sum, w, x): sum + 4 products in each int32, w four weights as stored, 0 … 15, x four s8.
 *
 * Sums of a group begin at 0 in registers, and are added to the rows' f32 sums from there. Threads:
 * pure functions. */
#ifndef QUIRE_KERNELS_WIDE_INT4_TILE_H
#define QUIRE_KERNELS_WIDE_INT4_TILE_H
#include "kernels/wide/int4_group.h"
#ifdef INTS

struct int4_sums {
    ints v[INT4_FEW][KERN_PANEL / INTS];
};

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

/* What the steps of a tile prefetch: `step` bytes from p on, and so on. */
struct int4_next {
    const char *p;
    size_t step;
};

/* A group of a slice. */
struct int4_one {
    const uint8_t *packed; /* as it is stored */
    const uint8_t *bytes;  /* unpacked, if it is */
    const float *x_sum;    /* [rows of the tile] */
    struct int4_rows x;
    uint32_t n_k;
};

/* From the group as it is stored. One row uses two chains of sums per output, to hide their
 * latency. */
INLINE void sums_packed(struct int4_sums *s, const struct int4_one *g, struct int4_tile t,
                        struct int4_next *next)
{
    struct int4_rows x = g->x;
    struct int4_sums more;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        more.v[0][j] = ints_set(0);
    for (const uint8_t *w = g->packed + (size_t)t.strip * 4, *end = w + g->n_k / 8 * LINE; w < end;
         w += LINE) {
        ints v[KERN_PANEL / INTS];
        if (t.strip == 0) {
            linear_prefetch(next->p, LINE, LINE / 64);
            next->p += next->step;
        }
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

/* From the unpacked group; prefetches `next` into the second-level cache. */
INLINE void sums_bytes(struct int4_sums *s, const struct int4_one *g, struct int4_tile t,
                       struct int4_next *next)
{
    struct int4_rows x = g->x;
    for (const uint8_t *w = g->bytes + (size_t)t.strip * 4, *end = w + g->n_k / 4 * LINE; w < end;
         w += LINE) {
        ints v[KERN_PANEL / INTS];
        linear_prefetch_far(next->p, next->step, 1);
        next->p += next->step;
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = int4_load(w + (size_t)j * INTS * 4);
        int4_dot(s, t, v, &x, 0);
        int4_on(&x, 4);
    }
}

/* The sums are in registers here: else gcc 12 spills some inside the loop over K, because of the
 * arithmetic behind it. */
INLINE void int4_keep(struct int4_sums *s, struct int4_tile t)
{
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        __asm__("" : "+x"(s->v[r][j]));
}

/* The group's sums onto acc, the tile's rows from the strip's first output on. */
INLINE void int4_add(float (*acc)[KERN_PANEL], const struct int4_sums *s, struct int4_tile t,
                     const struct int4_one *g)
{
    const uint8_t *scales = g->packed + int4_scales_at(g->n_k);
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const uint32_t o = t.strip + (uint32_t)(j * INTS);
        const floats scale = floats_load_f16((const uint16_t *)(const void *)scales + o);
        const floats zero = floats_load_i8((const int8_t *)scales + INT4_ZEROS_AT + o);
        UNROLL
        for (int r = 0; r < t.rows; r++)
            floats_store(&acc[r][o], ints_group(floats_load(&acc[r][o]), s->v[r][j], scale, zero,
                                                floats_set(g->x_sum[r])));
    }
}

/* Prevents the compiler from keeping acc in registers from group to group, which would spill
 * sums. */
INLINE void load_again(void)
{
    __asm__ volatile("" ::: "memory");
}

/* One group: every strip of outputs. */
INLINE void int4_group_tile(float (*acc)[KERN_PANEL], const struct int4_one *g, struct int4_tile t,
                            struct int4_next *next, const bool packed)
{
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
        struct int4_sums s;
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s.v[r][j] = ints_set(0);
        if (packed)
            sums_packed(&s, g, t, next);
        else
            sums_bytes(&s, g, t, next);
        int4_keep(&s, t);
        int4_add(acc, &s, t, g);
    }
}

#endif
#endif
