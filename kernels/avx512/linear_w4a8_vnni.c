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

/* Rows of a tile, at most, where one has `rows`. */
INLINE uint32_t most_rows(int rows)
{
    return rows > STRIP_WHOLE ? INT4_FEW : STRIP_WHOLE;
}

/* All tiles together prefetch the next slice, each its part. A tile that has all rows in one strip
 * prefetches some bytes ahead. */
INLINE struct strip_next next_of(const struct int4_part *p, uint32_t row, struct int4_tile t)
{
    const uint32_t n_tile = (p->n_row + most_rows(t.rows) - 1) / most_rows(t.rows);
    const uint32_t i_tile = (row * n_tile + p->n_row - 1) / p->n_row;
    const size_t n_end = p->n_group * (KERN_PANEL / (size_t)(t.n_vec * INTS));
    const size_t bytes = (p->n_next * int4_group_bytes(p->a->w.group) + n_tile - 1) / n_tile;
    struct strip_next next = {.step = (size_t)(t.n_vec * INTS) * 4 / n_tile, .is_far = true};
    if (p->n_row <= STRIP_WHOLE)
        return (struct strip_next){
            .p = (const char *)p->w + int4_ahead(t.rows, 4096),
            .step = LINE,
            .extra = int4_group_bytes(p->a->w.group) - int4_scales_at(p->a->w.group),
        };
    const size_t of_lines = n_end * (p->a->w.group / 8) * next.step;
    next.extra = bytes > of_lines ? (bytes - of_lines + n_end - 1) / n_end : 0;
    next.p = (const char *)p->next + i_tile * bytes;
    return next;
}

/* Tables of the slice's groups and of `rows` rows; `stride` from group to group. */
INLINE void make_tables(const struct int4_part *p, int32_t (*table)[INT4_ZERO_X], size_t stride,
                        uint32_t row, uint32_t rows)
{
    for (uint32_t g = 0; g < p->n_group; g++)
        for (uint32_t r = 0; r < rows; r++)
            strip_table(table[g * stride + r], p->x_sum[(size_t)g * p->n_row + row + r]);
}

/* The tables of a block of rows are kept for all panels if they fit. */
INLINE bool are_kept(const struct int4_part *p)
{
    return p->a->w.n_in / p->a->w.group * p->n_row <= INT4_TABLES;
}

INLINE int32_t (*kept_tables(const struct int4_part *p))[INT4_ZERO_X]
{
    return p->s->zero_x + (size_t)(p->k / p->a->w.group) * p->n_row;
}

INLINE const int32_t (*tables(const struct int4_part *p, uint32_t row, const int rows,
                              size_t *stride))[INT4_ZERO_X]
{
    *stride = are_kept(p) ? p->n_row : (size_t)rows;
    if (are_kept(p))
        return (const int32_t(*)[INT4_ZERO_X])(kept_tables(p) + row);
    make_tables(p, p->s->zero_x, *stride, row, (uint32_t)rows);
    return (const int32_t(*)[INT4_ZERO_X])p->s->zero_x;
}

/* Tables have no element for a zero of 16, which few weights have. */
INLINE bool has_zeros_beyond(const struct int4_part *p)
{
    const uint32_t group = p->a->w.group;
    const uint8_t *zeros = p->w + int4_scales_at(group) + INT4_ZEROS_AT;
    ints any = ints_set(0);
    for (uint32_t g = 0; g < p->n_group; g++, zeros += int4_group_bytes(group))
        any = _mm512_or_si512(any, int4_load(zeros));
    return _mm512_test_epi8_mask(any, _mm512_set1_epi8(INT4_ZERO_X)) != 0;
}

/* The finished sums of a strip, of a panel of existing outputs that is not gated. */
INLINE void store_plain(const struct int4_part *p, uint32_t row, const struct strip_acc *acc,
                        struct int4_tile t, const struct epilogue_kind kind)
{
    const struct epilogue f = EPILOGUE_OF(p->a);
    const struct quant_row *of_rows = p->a->rows + p->row + row;
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        const uint32_t o = p->o + t.strip + (uint32_t)(j * INTS);
        const struct vec bias = epilogue_bias(&f, o, kind);
        size_t stride;
        char *y = epilogue_at(&f, p->row + row, o, &stride, kind);
        UNROLL
        for (int r = 0; r < t.rows; r++, y += stride) {
            __asm__("" : "+r"(y)); /* else gcc 12 multiplies for each row */
            epilogue_whole(y, vec_mul(vec_of(acc->v[r][j]), vec_set(of_rows[r].scale)), bias, kind);
        }
    }
}

/* A strip's outputs over the slice. */
INLINE void strip(const struct int4_part *p, uint32_t row, struct int4_tile t, struct strip_at at,
                  const struct strip_form *f, struct strip_next *next)
{
    float(*onto)[KERN_PANEL] = p->s->acc + row;
    struct strip_acc acc;
    at.w += (size_t)t.strip * 4;
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        acc.v[r][j] = p->k == 0 ? floats_set(0) : floats_load(&onto[r][t.strip + j * INTS]);
    for (uint32_t n = p->n_group; n; n--) {
        struct strip_sums s;
        strip_open(&s, &at, f, t);
        strip_products(&s, &at, f, t, next);
        strip_keep(&s, t);
        strip_close(&acc, &s, &at, f, t);
        strip_prefetch_extra(next, t);
    }
    if (is_plain(p)) {
        EPILOGUE_BY_KIND(p->a, store_plain, p, row, &acc, t);
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
    struct strip_form f = {.n_k = p->a->w.group, .x_sum_stride = p->n_row};
    struct strip_at at = {
        .w = p->w,
        .x_sum = p->x_sum + row,
        .x = int4_rows(p, row, rows),
    };
    if (int4_last(p)) {
        const struct epilogue y = EPILOGUE_OF(p->a);
        const struct range of = {p->row + row, p->row + row + (uint32_t)rows};
        epilogue_prefetch(&y, of, p->o, int4_outputs(p));
    }
    if (rows > STRIP_WHOLE)
        at.table = tables(p, row, rows, &f.table_stride);
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS))
        strip(p, row, t, at, &f, &next);
    if (int4_last(p) && !is_plain(p))
        epilogue_rows(p, row, (uint32_t)rows);
}

#define TILE(rows)                                                   \
    static void tile_##rows(const struct int4_part *p, uint32_t row) \
    {                                                                \
        tile(p, row, rows);                                          \
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
static tile_fn *const tiles[INT4_FEW + 1] = {NULL,    tile_1,  tile_2, tile_3, tile_4,
                                             tile_5,  tile_6,  tile_7, tile_8, tile_9,
                                             tile_10, tile_11, tile_12};

/* In tiles of about equal size. */
static void slice(const struct int4_part *p)
{
    const bool by_tables = p->n_row > STRIP_WHOLE;
    if (by_tables && p->is_first && are_kept(p))
        make_tables(p, kept_tables(p), p->n_row, 0, p->n_row);
    const uint32_t most = by_tables && !has_zeros_beyond(p) ? INT4_FEW : STRIP_WHOLE;
    const uint32_t n_tile = (p->n_row + most - 1) / most;
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        tiles[end - begin](p, begin);
    }
}

void linear_w4a8_avx512_vnni(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    const struct int4_kernel by = {.fn = slice, .few = STRIP_WHOLE, .slice_k = INT4_TABLES_K};
    int4_tile_loop(a, x, &by);
}
