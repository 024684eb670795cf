/* SPDX-License-Identifier: Apache-2.0 */
/* int4_strip - the micro-kernel of linear_w4a8 in 32 registers: a strip of outputs times a tile of
 * rows, over all groups of a slice. Formula and order: ops_int4.h.
 *
 * Registers hold rows x n_vec sums of integers and as many of f32, so that the end of a group loads
 * and stores no sum:
 *
 *     for groups of the slice
 *       sum = -zero * sum of x       a permutation of products that the tile computed before
 *       for lines of 8 inputs        unpacked beside the products, which other units compute
 *         sum += w * x
 *       acc = scale * sum + acc
 *
 * Tiles of up to STRIP_WHOLE rows have one strip and no tables: they subtract in f32, which is
 * exact too. The including file defines the names of int4_group.h and ints_dot. Threads: as ops.h.
 */
#ifndef QUIRE_KERNELS_AVX512_INT4_STRIP_H
#define QUIRE_KERNELS_AVX512_INT4_STRIP_H
#include "kernels/wide/int4_group.h"
#ifdef __AVX512BW__

#define STRIP_WHOLE 3 /* rows of a tile whose strip is the whole panel, at most */

struct strip_sums {
    ints v[INT4_FEW][KERN_PANEL / INTS];
};
struct strip_acc {
    floats v[INT4_FEW][KERN_PANEL / INTS];
};
struct strip_next { /* prefetched from p on: with each line of a strip, and behind each group */
    const char *p;
    size_t step, extra; /* bytes */
    bool is_far;        /* into the second-level cache */
};

/* Where a strip is: the products and the end of a group move it on, so that the next group's loads
 * wait for no arithmetic. */
struct strip_at {
    const uint8_t *w;                    /* the strip's part of a line */
    const float *x_sum;                  /* [rows] of the group */
    const int32_t (*table)[INT4_ZERO_X]; /* [rows] of the group */
    struct int4_rows x;
};
struct strip_form {
    uint32_t n_k;                      /* of a group */
    size_t x_sum_stride, table_stride; /* from group to group */
};

/* Table of a row and a group: element i is -i * x_sum. */
INLINE void strip_table(int32_t *table, float x_sum)
{
    const ints zeros =
        _mm512_set_epi32(-15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0);
    ints_store(table, _mm512_mullo_epi32(zeros, ints_set((int32_t)x_sum)));
}

/* Four neighbours along K, k and on. */
INLINE void strip_dot(struct strip_sums *s, struct int4_tile t, const ints *w,
                      const struct int4_rows *x, int k)
{
    UNROLL
    for (int r = 0; r < t.rows; r++) {
        const int8_t *from = r < (int)LINEAR_TILE ? x->x : x->more;
        const size_t at = r % (int)LINEAR_TILE ? x->at[r % (int)LINEAR_TILE] : 0;
        const ints four = int4_four(from + at + k);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s->v[r][j] = ints_dot(s->v[r][j], w[j], four);
    }
}

INLINE void strip_prefetch(struct strip_next *next, struct int4_tile t)
{
    const int n_line = t.n_vec * INTS * 4 / 64;
    if (t.rows > STRIP_WHOLE || next->is_far)
        linear_prefetch_far(next->p, next->step, n_line);
    else
        linear_prefetch(next->p, LINE, n_line);
    next->p += next->step;
}

/* What the lines of a strip leave: scales, and what the next slice has more than this one. */
INLINE void strip_prefetch_extra(struct strip_next *next, struct int4_tile t)
{
    if (t.rows > STRIP_WHOLE || next->is_far)
        for (size_t i = 0; i < next->extra; i += 64)
            __builtin_prefetch(next->p + i, 0, 2);
    next->p += next->extra;
}

/* The group's products. One row uses two chains of sums per output, to hide their latency. */
INLINE void strip_products(struct strip_sums *s, struct strip_at *at, const struct strip_form *f,
                           struct int4_tile t, struct strip_next *next)
{
    struct strip_sums more;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        more.v[0][j] = ints_set(0);
    for (const uint8_t *end = at->w + int4_scales_at(f->n_k); at->w < end; at->w += LINE) {
        ints v[KERN_PANEL / INTS];
        strip_prefetch(next, t);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_low(int4_load(at->w + (size_t)j * INTS * 4));
        strip_dot(s, t, v, &at->x, 0);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_high(int4_load(at->w + (size_t)j * INTS * 4));
        strip_dot(t.rows == 1 ? &more : s, t, v, &at->x, 4);
        int4_on(&at->x, 8);
    }
    if (t.rows > 1)
        return;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        s->v[0][j] = ints_add(s->v[0][j], more.v[0][j]);
}

/* The group's zeros of 16 outputs; scales: where the strip's lines end. */
INLINE ints strip_zeros(const uint8_t *scales, struct int4_tile t, int j)
{
    const uint8_t *zeros = scales - t.strip * 4 + INT4_ZEROS_AT + t.strip + j * INTS;
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)zeros));
}

/* The sums before the group's first product. */
INLINE void strip_open(struct strip_sums *s, const struct strip_at *at, const struct strip_form *f,
                       struct int4_tile t)
{
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const ints zero = strip_zeros(at->w + int4_scales_at(f->n_k), t, j);
        UNROLL
        for (int r = 0; r < t.rows; r++)
            s->v[r][j] = t.rows > STRIP_WHOLE
                             ? _mm512_permutexvar_epi32(zero, ints_load(at->table[r]))
                             : ints_set(0);
    }
}

/* The group's sums onto acc, and on to the next group. */
INLINE void strip_close(struct strip_acc *acc, const struct strip_sums *s, struct strip_at *at,
                        const struct strip_form *f, struct int4_tile t)
{
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const uint8_t *scales = at->w - t.strip * 2 + j * INTS * 2;
        const floats scale = floats_load_f16((const uint16_t *)(const void *)scales);
        const floats zero = ints_floats(strip_zeros(at->w, t, j));
        UNROLL
        for (int r = 0; r < t.rows; r++)
            acc->v[r][j] =
                t.rows > STRIP_WHOLE
                    ? floats_fma(scale, ints_floats(s->v[r][j]), acc->v[r][j])
                    : ints_group(acc->v[r][j], s->v[r][j], scale, zero, floats_set(at->x_sum[r]));
    }
    at->w += int4_group_bytes(f->n_k) - int4_scales_at(f->n_k);
    at->x_sum += f->x_sum_stride;
    at->table += f->table_stride;
}

/* The sums are in registers here: else gcc 12 spills some inside the loop over K, because of the
 * arithmetic behind it. */
INLINE void strip_keep(struct strip_sums *s, struct int4_tile t)
{
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        __asm__("" : "+v"(s->v[r][j]));
}

#endif
#endif
