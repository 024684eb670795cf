/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 in AVX-512 registers with AVX-512-VNNI's dot product; formula and order: ops_int4.h.
 *
 * A tile has all outputs of a panel and up to INT4_FEW rows, and unpacks in registers. Up to
 * STRIP_WHOLE rows it reads the panel from first byte to last. More rows go strip by strip over a
 * slice of the panel, which lies in the second-level cache, and prefetch the next slice meanwhile.
 * Threads: as ops.h. */
#include "kernels/avx512/ints.h"
#include "kernels/variants.h"

INLINE ints ints_dot(ints sum, ints w, ints x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
#include "kernels/avx512/int4_strip.h"
#include "kernels/wide/store.h"

#ifndef SLICE_K
#define SLICE_K 1024
#endif

static __attribute__((noinline)) void epilogue_rows(const struct int4_part *p, uint32_t row,
                                                    uint32_t n)
{
    for (uint32_t r = row; r < row + n; r++)
        int4_epilogue(p, r);
}

/* Sums go from registers to y. */
INLINE bool is_plain(const struct int4_part *p)
{
    return int4_last(p) && !p->a->w.gated && int4_outputs(p) == KERN_PANEL;
}

/* A line of a strip is a step, and the end of a group. The steps of all tiles together prefetch the next slice; a tile
 * whose strip is the whole panel prefetches some bytes ahead. */
INLINE struct strip_next next_of(const struct int4_part *p, uint32_t row, struct int4_tile t)
{
    const uint32_t n_tile = (p->n_row + INT4_FEW - 1) / INT4_FEW;
    const uint32_t i_tile = (row * n_tile + p->n_row - 1) / p->n_row;
    const size_t n_strip = KERN_PANEL / (size_t)(t.n_vec * INTS);
    const size_t n_step = p->n_group * ((size_t)p->a->w.group / 8 + 1) * n_strip;
    const size_t bytes = p->n_group * int4_group_bytes(p->a->w.group);
    struct strip_next next = {.step = bytes / (n_step * n_tile) + 1};
    if (t.rows <= STRIP_WHOLE)
        return (struct strip_next){(const char *)p->w + int4_ahead(t.rows, 4096), LINE};
    next.p = (const char *)p->next + i_tile * n_step * next.step;
    return next;
}

/* The tables of the slice's groups and the tile's rows, `stride` between groups. They are kept for
 * all panels if those of the block fit. */
INLINE const int32_t (*tables(const struct int4_part *p, uint32_t row, const int rows,
                              size_t *stride))[INT4_ZERO_X]
{
    const uint32_t n_group = p->a->w.n_in / p->a->w.group;
    const bool are_kept = n_group * p->n_row <= INT4_TABLES;
    const size_t at = are_kept ? p->k / p->a->w.group * p->n_row + row : 0;
    int32_t(*table)[INT4_ZERO_X] = p->s->zero_x + at;
    *stride = are_kept ? p->n_row : (size_t)rows;
    if (!are_kept || p->is_first)
        for (uint32_t g = 0; g < p->n_group; g++)
            for (uint32_t r = 0; r < (uint32_t)rows; r++)
                strip_table(table[g * *stride + r], p->x_sum[(size_t)g * p->n_row + row + r]);
    return (const int32_t(*)[INT4_ZERO_X])table;
}

/* The finished sums of a strip to y, of what kind is known where it is inlined. */
INLINE void store_as(const struct int4_part *p, uint32_t row, const struct strip_acc *acc,
                     struct int4_tile t, const bool has_bias, const bool has_y, enum dtype dtype)
{
    const uint32_t o = p->o + t.strip;
    const struct quant_row *of_rows = p->a->rows + p->row + row;
    const size_t element = dtype == DT_BF16 ? 2 : 4, stride = p->a->y_stride * element;
    char *y = (char *)p->a->y + (p->row + row) * stride + o * element;
    UNROLL
    for (int r = 0; r < t.rows; r++, y += stride) {
        __asm__("" : "+r"(y)); /* else gcc 12 multiplies for each row */
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            struct vec v = vec_mul(vec_of(acc->v[r][j]), vec_set(of_rows[r].scale));
            if (has_bias)
                v = vec_add(v, vec_load(p->a->bias + o + j * INTS));
            if (has_y)
                v = vec_add(v, vec_load((const float *)(void *)y + j * INTS));
            wide_store_at(y, dtype, (size_t)(j * INTS), v, 16);
        }
    }
}

/* Of a panel of existing outputs that is not gated; the same steps as int4_epilogue. */
INLINE void store_plain(const struct int4_part *p, uint32_t row, const struct strip_acc *acc,
                        struct int4_tile t)
{
    const bool has_bias = p->a->bias;
    if (p->a->y_dtype == DT_BF16 && !p->a->accumulate) {
        if (has_bias)
            store_as(p, row, acc, t, true, false, DT_BF16);
        else
            store_as(p, row, acc, t, false, false, DT_BF16);
    } else if (p->a->accumulate) {
        if (has_bias)
            store_as(p, row, acc, t, true, true, DT_F32);
        else
            store_as(p, row, acc, t, false, true, DT_F32);
    } else if (has_bias) {
        store_as(p, row, acc, t, true, false, DT_F32);
    } else {
        store_as(p, row, acc, t, false, false, DT_F32);
    }
}

/* A strip's outputs over the slice. */
INLINE void strip(const struct int4_part *p, uint32_t row, struct int4_tile t,
                  struct strip_group g, struct strip_next *next)
{
    float(*onto)[KERN_PANEL] = p->s->acc + row;
    struct strip_acc acc;
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        acc.v[r][j] = p->k == 0 ? floats_set(0) : floats_load(&onto[r][t.strip + j * INTS]);
    for (uint32_t i = 0, n = p->n_group; i < n; i++) {
        struct strip_sums s;
        strip_open(&s, &g, t);
        strip_products(&s, &g, t, next);
        strip_keep(&s, t);
        strip_close(&acc, &s, &g, t);
        g.w += int4_group_bytes(g.n_k);
        g.x_sum += p->n_row;
        g.table += g.table_stride;
        int4_on(&g.x, (int)g.n_k);
        if (t.rows > STRIP_WHOLE)
            strip_prefetch(next, t);
        else
            next->p += int4_group_bytes(g.n_k) - int4_scales_at(g.n_k);
    }
    if (is_plain(p)) {
        store_plain(p, row, &acc, t);
        return;
    }
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        floats_store(&onto[r][t.strip + (uint32_t)(j * INTS)], acc.v[r][j]);
}

INLINE void tile(const struct int4_part *whole, uint32_t row, const int rows)
{
    const struct int4_part part = *whole, *p = &part;
    struct int4_tile t = {.rows = rows, .n_vec = rows > STRIP_WHOLE ? rows > 6 ? 1 : 2 : 4};
    struct strip_next next = next_of(p, row, t);
    if (int4_last(p)) {
        const struct epilogue f = EPILOGUE_OF(p->a);
        const struct range of = {p->row + row, p->row + row + (uint32_t)rows};
        epilogue_prefetch(&f, of, p->o, int4_outputs(p));
    }
    struct strip_group g = {
        .w = p->w,
        .x_sum = p->x_sum + row,
        .x = int4_rows(p, row, rows),
        .n_k = p->a->w.group,
    };
    if (rows > STRIP_WHOLE)
        g.table = tables(p, row, rows, &g.table_stride);
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS))
        strip(p, row, t, g, &next);
    if (int4_last(p) && !is_plain(p))
        epilogue_rows(p, row, (uint32_t)rows);
}

#define TILE(rows)                                                  \
    static void tile_##rows(const struct int4_part *p, uint32_t row) \
    {                                                               \
        tile(p, row, rows);                                         \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#undef TILE

typedef void tile_fn(const struct int4_part *p, uint32_t row);
static tile_fn *const tiles[INT4_FEW + 1] = {NULL,   tile_1, tile_2, tile_3,  tile_4,  tile_5, tile_6,
                                             tile_7, tile_8, tile_9, tile_10, tile_11, tile_12};

/* In tiles of about equal size. */
static void slice(const struct int4_part *p)
{
    const uint32_t n_tile = (p->n_row + INT4_FEW - 1) / INT4_FEW;
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        tiles[end - begin](p, begin);
    }
}

void linear_w4a8_avx512_vnni(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    const struct int4_kernel by = {.fn = slice, .few = STRIP_WHOLE, .slice_k = SLICE_K};
    int4_tile_loop(a, x, &by);
}
