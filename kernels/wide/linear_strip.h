/* SPDX-License-Identifier: Apache-2.0 */
/* linear_strip - the micro-kernel of linear on 16 lanes: the sums of 1 to LINEAR_TILE rows over a
 * strip of a panel's outputs.
 *
 * A strip has n_vec vecs, 16 outputs each; a lane is one accumulator. n_vec is 4, the whole panel,
 * when the registers hold rows x n_vec sums (VEC_SUMS), else a tile iterates over the panel's slice
 * in strips; a single row always takes the whole panel, so that decoding reads memory in order.
 *
 * bf16 weights come as pairs along K in 32 bits and are widened exactly: << 16 is the even
 * element, & 0xffff0000 the odd one. With bf16 x the odd element of a pair goes first.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_STRIP_H
#define QUIRE_KERNELS_WIDE_LINEAR_STRIP_H
#include "kernels/tiling/linear_tile.h"
#include "kernels/ops/ops.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define VECS     4    /* of a panel */
#define LINEAR_X 256u /* elements between rows of x in BOTH_BF16: see tile_widened */

enum kind { W_F32, W_F16, W_BF16, BOTH_BF16 };

struct sums {
    struct vec v[LINEAR_TILE][VECS];
};

/* The form of a tile; constants after inlining. */
struct form {
    int rows, n_vec;
    enum kind kind;
};

/* Two inputs, k and k + 1, of a strip. */
struct strip_pair {
    const float *x;          /* of the first row */
    const char *w;           /* of the strip's first output */
    size_t row[LINEAR_TILE]; /* elements from x to each row */
};

/* Vec j of the strip's weights for k, or for k + 1 when `odd`. */
INLINE struct vec weight(const struct strip_pair *p, enum kind kind, int odd, int j)
{
    const void *w = p->w;
    const int at = odd * (int)KERN_PANEL + 16 * j;
    if (kind == W_F32)
        return vec_load((const float *)w + at);
    if (kind == W_F16)
        return vec_load_f16((const uint16_t *)w + at);
    return odd ? vec_load_odd((const uint16_t *)w + 32 * j)
               : vec_load_even((const uint16_t *)w + 32 * j);
}

/* sums += x[:, k] W[:, k], for the strip of the panel. What there is less of, rows or vecs of
 * weights, is kept in registers. */
INLINE void add_k(struct sums *s, const struct strip_pair *p, struct form f, int odd)
{
    struct vec kept[LINEAR_TILE];
    if (f.rows < f.n_vec) {
        UNROLL
        for (int r = 0; r < f.rows; r++)
            kept[r] = vec_set(p->x[p->row[r] + (size_t)odd]);
        UNROLL
        for (int j = 0; j < f.n_vec; j++) {
            struct vec w = weight(p, f.kind, odd, j);
            UNROLL
            for (int r = 0; r < f.rows; r++)
                vec_add_product(&s->v[r][j], kept[r], w);
        }
        return;
    }
    UNROLL
    for (int j = 0; j < f.n_vec; j++)
        kept[j] = weight(p, f.kind, odd, j);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec x = vec_set(p->x[p->row[r] + (size_t)odd]);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            vec_add_product(&s->v[r][j], x, kept[j]);
    }
}

/* Prevents the compiler from keeping the even and the odd weights of a pair in registers at once,
 * which would spill sums: the second half is loaded again, from the cache. */
INLINE void load_again(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The sums of n_vec vecs from output `lane` of the panel on. */
INLINE void tile_strip(const struct linear_tile *t, struct form f, uint32_t lane)
{
    const int odd_first = f.kind == BOTH_BF16, n_strip = VECS / f.n_vec;
    const size_t element = f.kind == W_F32 ? 4 : 2, pair_bytes = 2 * KERN_PANEL * element;
    const size_t n_pair = t->n_k / 2, step = (t->next.step + (size_t)n_strip - 1) / (size_t)n_strip;
    const char *next = t->next.p + lane / (16 * (uint32_t)f.n_vec) * n_pair * step;
    struct strip_pair p = {.x = t->x, .w = t->w};
    struct sums s;
    p.w += lane * (f.kind == W_F32 || f.kind == W_F16 ? element : 4); /* of bf16 a pair */
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        p.row[r] =
            f.kind == BOTH_BF16 ? (size_t)r * LINEAR_X : linear_row(t->x_bytes / sizeof(float), r);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            s.v[r][j] = t->first ? vec_set(0) : vec_load(t->sum + r * KERN_PANEL + lane + 16 * j);
    }
    for (const float *end = p.x + n_pair * 2; p.x < end; p.x += 2, p.w += pair_bytes) {
        if (LINEAR_ONE_PASS > 1 && t->is_far)
            linear_prefetch_far(next, step, (int)(pair_bytes / 64) / n_strip);
        else
            linear_prefetch(next, step, (int)(pair_bytes / 64) / n_strip);
        next += step;
        add_k(&s, &p, f, odd_first);
        load_again();
        add_k(&s, &p, f, !odd_first);
    }
    if (t->n_k % 2)
        add_k(&s, &p, f, 0);
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        vec_store(t->sum + r * KERN_PANEL + lane + 16 * j, s.v[r][j]);
}

#endif
#endif
