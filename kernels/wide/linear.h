/* SPDX-License-Identifier: Apache-2.0 */
/* linear with f32 multiply-adds on 16 lanes; formula and order: ref/linear.c; loops around the
 * tiles: linear_tile_loop.h.
 *
 *
 * A tile holds rows x n_vec vecs of sums, 16 outputs a vec, each lane one accumulator. n_vec is 4,
 * the whole panel, when the registers hold it (VEC_SUMS), else the tile iterates over the panel's
 * slice in strips; a single row always takes the whole panel, so that decoding reads memory in
 * order.
 *
 * bf16 weights come as pairs along K in 32 bits and are widened exactly: << 16 is the even
 * element, & 0xffff0000 the odd one. With bf16 x the odd element goes first and subnormals are
 * flushed (MXCSR), which is the arithmetic of vdpbf16ps. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_H
#define QUIRE_KERNELS_WIDE_LINEAR_H
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */
#define VECS            4       /* of a panel */

enum kind { W_F32, W_F16, W_BF16, BOTH_BF16 };

struct sums {
    struct vec v[LINEAR_TILE][VECS];
};

/* The form of a tile; all members but the strip are constants after inlining. */
struct form {
    int rows, n_vec;
    enum kind kind;
    uint32_t strip; /* first output, within the panel */
};

/* Vec j of the strip's weights for k; `odd` says which half of a bf16 pair k is. */
INLINE struct vec weight(const struct linear_tile *t, struct form f, uint32_t k, int odd, int j)
{
    const uint32_t lane = f.strip + 16 * (uint32_t)j;
    if (f.kind == W_F32)
        return vec_load((const float *)t->w + (size_t)k * KERN_PANEL + lane);
    if (f.kind == W_F16)
        return vec_load_f16((const uint16_t *)t->w + (size_t)k * KERN_PANEL + lane);
    const uint16_t *pairs =
        (const uint16_t *)t->w + (size_t)(k - (uint32_t)odd) * KERN_PANEL + 2 * lane;
    return odd ? vec_load_odd(pairs) : vec_load_even(pairs);
}

/* Element k of row r in all lanes; 0 past the end of a bf16 row of odd length. */
INLINE struct vec operand(const struct linear_tile *t, enum kind kind, uint32_t k, int r)
{
    const void *row = (const char *)t->x + (size_t)r * t->x_bytes;
    if (kind == BOTH_BF16)
        return vec_set(k < t->n_k ? bf16_to_f32(((const uint16_t *)row)[k]) : 0);
    return vec_set(((const float *)row)[k]);
}

/* sums += x[:, k] W[:, k], for the strip of the panel. */
INLINE void add_k(struct sums *s, const struct linear_tile *t, struct form f, uint32_t k, int odd)
{
    struct vec w[VECS];
    if (f.rows == 1) { /* each weight is used once: no register is kept for it */
        struct vec x = operand(t, f.kind, k, 0);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            s->v[0][j] = vec_fma(x, weight(t, f, k, odd, j), s->v[0][j]);
        return;
    }
    UNROLL
    for (int j = 0; j < f.n_vec; j++)
        w[j] = weight(t, f, k, odd, j);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec x = operand(t, f.kind, k, r);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            s->v[r][j] = vec_fma(x, w[j], s->v[r][j]);
    }
}

/* Prevents the compiler from keeping the even and the odd weights of a pair in registers at once,
 * which would spill sums: the second half is loaded again, from the cache. */
INLINE void load_again(void)
{
    __asm__ volatile("" ::: "memory");
}

/* k and k + 1, in the order of the definition. */
INLINE void add_pair(struct sums *s, const struct linear_tile *t, struct form f, uint32_t k)
{
    const int odd_first = f.kind == BOTH_BF16;
    add_k(s, t, f, k + (uint32_t)odd_first, odd_first);
    load_again();
    add_k(s, t, f, k + !odd_first, !odd_first);
}

INLINE void tile_strip(const struct linear_tile *t, struct form f)
{
    const size_t k_bytes = KERN_PANEL * (f.kind == W_F32 ? 4u : 2u); /* of the panel, for one k */
    struct sums s;
    uint32_t k = 0;
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        s.v[r][j] = t->first ? vec_set(0) : vec_load(t->sum + r * KERN_PANEL + f.strip + 16 * j);
    for (; k + 1 < t->n_k; k += 2) {
        linear_prefetch(t->next.p + k / 2 * t->next.step, t->next.step, (int)k_bytes / 32);
        add_pair(&s, t, f, k);
    }
    if (k < t->n_k &&
        f.kind == BOTH_BF16) /* odd n_in: 0 times the padding, then the last element */
        add_pair(&s, t, f, k);
    else if (k < t->n_k)
        add_k(&s, t, f, k, 0);
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        vec_store(t->sum + r * KERN_PANEL + f.strip + 16 * j, s.v[r][j]);
}

INLINE void tile(const struct linear_tile *t, const int rows, const enum kind kind)
{
    const struct linear_tile local = *t; /* a local copy, which load_again() does not invalidate */
    const int whole = rows == 1 || rows * VECS <= VEC_SUMS;
    struct form f = {.rows = rows, .n_vec = whole ? VECS : rows == 2 ? 2 : 1, .kind = kind};
    for (f.strip = 0; f.strip < KERN_PANEL; f.strip += 16 * (uint32_t)f.n_vec)
        tile_strip(&local, f);
}

/* Each kind for 1 to LINEAR_TILE rows, as functions and as the table of linear_tile_loop. */
#define TILE(name, kind, rows)                             \
    static void name##_##rows(const struct linear_tile *t) \
    {                                                      \
        tile(t, rows, kind);                               \
    }
#define TILES(name, kind)                                                           \
    TILE(name, kind, 1)                                                             \
    TILE(name, kind, 2)                                                             \
    TILE(name, kind, 3)                                                             \
    TILE(name, kind, 4)                                                             \
    TILE(name, kind, 5)                                                             \
    TILE(name, kind, 6)                                                             \
    static linear_tile_fn *const name[LINEAR_TILE] = {name##_1, name##_2, name##_3, \
                                                      name##_4, name##_5, name##_6};
TILES(tiles_f32, W_F32)
TILES(tiles_f16, W_F16)
TILES(tiles_bf16, W_BF16)
TILES(tiles_dot, BOTH_BF16)
#undef TILE
#undef TILES

/* Subnormals are zero inside the tile and nowhere else: bias and old y are added as they are. The
 * tile is a real call, so that none of its arithmetic can move past the switch. */
INLINE void flushed(linear_tile_fn *tile_fn, const struct linear_tile *t)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMAL);
    tile_fn(t);
    _mm_setcsr(before);
}
#define FLUSHED(rows)                                       \
    static void flushed_##rows(const struct linear_tile *t) \
    {                                                       \
        flushed(tiles_dot[(rows)-1], t);                    \
    }
FLUSHED(1)
FLUSHED(2)
FLUSHED(3)
FLUSHED(4)
FLUSHED(5)
FLUSHED(6)
#undef FLUSHED
static linear_tile_fn *const tiles_flushed[LINEAR_TILE] = {flushed_1, flushed_2, flushed_3,
                                                           flushed_4, flushed_5, flushed_6};

INLINE void wide_linear(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype == DT_BF16) {
        linear_tile_loop(a, x, tiles_flushed);
    } else if (a->w.dtype == DT_F32) {
        linear_tile_loop(a, x, tiles_f32);
    } else if (a->w.dtype == DT_F16) {
        linear_tile_loop(a, x, tiles_f16);
    } else {
        linear_tile_loop(a, x, tiles_bf16);
    }
}

#endif
#endif
