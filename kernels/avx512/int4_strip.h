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
 * Tiles of few rows have one strip and no tables: they subtract in f32, which is exact too.
 * The including file defines the names of int4_group.h and ints_dot. Threads: as ops.h. */
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
struct strip_next { /* what the steps of a tile prefetch: `step` bytes from p on, and so on */
    const char *p;
    size_t step;
};

/* A group, for a tile. */
struct strip_group {
    const uint8_t *w;                    /* as it is stored */
    const float *x_sum;                  /* [rows] */
    const int32_t (*table)[INT4_ZERO_X]; /* [rows], table_stride from group to group */
    size_t table_stride;
    struct int4_rows x;
    uint32_t n_k;
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

/* A tile of few rows reads memory, others a slice in the second-level cache. */
INLINE void strip_prefetch(struct strip_next *next, struct int4_tile t)
{
    const int n_line = t.n_vec * INTS * 4 / 64;
    if (t.rows > STRIP_WHOLE)
        linear_prefetch_far(next->p, next->step, n_line);
    else
        linear_prefetch(next->p, LINE, n_line);
    next->p += next->step;
}

/* The group's products. One row uses two chains of sums per output, to hide their latency. */
INLINE void strip_products(struct strip_sums *s, const struct strip_group *g, struct int4_tile t,
                           struct strip_next *next)
{
    struct int4_rows x = g->x;
    struct strip_sums more;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        more.v[0][j] = ints_set(0);
    for (const uint8_t *w = g->w + (size_t)t.strip * 4, *end = w + g->n_k / 8 * LINE; w < end;
         w += LINE) {
        ints v[KERN_PANEL / INTS];
        strip_prefetch(next, t);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_low(int4_load(w + (size_t)j * INTS * 4));
        strip_dot(s, t, v, &x, 0);
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = ints_high(int4_load(w + (size_t)j * INTS * 4));
        strip_dot(t.rows == 1 ? &more : s, t, v, &x, 4);
        int4_on(&x, 8);
    }
    if (t.rows > 1)
        return;
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        s->v[0][j] = ints_add(s->v[0][j], more.v[0][j]);
}

INLINE ints strip_zeros(const struct strip_group *g, uint32_t o)
{
    const uint8_t *zeros = g->w + int4_scales_at(g->n_k) + INT4_ZEROS_AT + o;
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)zeros));
}

/* The sums before the group's first product. Few weights have zeros of 16, beyond the tables. */
INLINE void strip_open(struct strip_sums *s, const struct strip_group *g, struct int4_tile t)
{
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const ints zero = strip_zeros(g, t.strip + (uint32_t)(j * INTS));
        UNROLL
        for (int r = 0; r < t.rows; r++)
            s->v[r][j] = t.rows > STRIP_WHOLE
                             ? _mm512_permutexvar_epi32(zero, ints_load(g->table[r]))
                             : ints_set(0);
        const __mmask16 beyond = _mm512_test_epi32_mask(zero, ints_set(INT4_ZERO_X));
        if (t.rows <= STRIP_WHOLE || __builtin_expect(beyond == 0, 1))
            continue;
        UNROLL
        for (int r = 0; r < t.rows; r++)
            s->v[r][j] =
                _mm512_mask_slli_epi32(s->v[r][j], beyond, ints_set(g->table[r][INT4_ZERO_X / 2]), 1);
    }
}

/* The group's sums onto acc. */
INLINE void strip_close(struct strip_acc *acc, const struct strip_sums *s,
                        const struct strip_group *g, struct int4_tile t)
{
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const uint32_t o = t.strip + (uint32_t)(j * INTS);
        const uint8_t *scales = g->w + int4_scales_at(g->n_k) + o * sizeof(uint16_t);
        const floats scale = floats_load_f16((const uint16_t *)(const void *)scales);
        const floats zero = ints_floats(strip_zeros(g, o));
        UNROLL
        for (int r = 0; r < t.rows; r++)
            acc->v[r][j] =
                t.rows > STRIP_WHOLE
                    ? floats_fma(scale, ints_floats(s->v[r][j]), acc->v[r][j])
                    : ints_group(acc->v[r][j], s->v[r][j], scale, zero, floats_set(g->x_sum[r]));
    }
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
