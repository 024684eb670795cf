/* SPDX-License-Identifier: Apache-2.0 */
/* attention_values - sum p V for the rows of an item. See wide/attention.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_VALUES_H
#define QUIRE_KERNELS_WIDE_ATTENTION_VALUES_H
#include "kernels/wide/attention_item.h"
#ifdef VEC_SUMS

#define COLUMNS_MAX 4 /* vecs of V in one tile */
#define VALUE_ROWS  6

/* One vec of V; `last` lanes when it is the rest of a row that is no multiple of 16. */
INLINE struct vec value_load(const void *v, size_t at, const enum dtype type, uint32_t last)
{
    if (type == DT_I8)
        return last ? vec_load_i8_n((const int8_t *)v + at, last)
                    : vec_load_i8((const int8_t *)v + at);
    if (type == DT_BF16)
        return last ? vec_load_bf16_n((const uint16_t *)v + at, last)
                    : vec_load_bf16((const uint16_t *)v + at);
    return last ? vec_load_n((const float *)v + at, last) : vec_load((const float *)v + at);
}

struct value_form { /* constants where they are inlined */
    int rows, n_vec, partial;
    enum dtype type;
};

struct value_tile {
    const struct item *it;
    struct pos_range range; /* positions to add, within one chunk */
    uint32_t row, column;
    uint32_t last; /* columns of a partial vec, 0 = whole */
};

/* sum += p V for one position. v: its V from the tile's first column; p: row 0's probability. */
INLINE void value_step(struct vec sum[VALUE_ROWS][COLUMNS_MAX], struct value_form f, const void *v,
                       const float *p, uint32_t last)
{
    struct vec vc[COLUMNS_MAX];
    UNROLL
    for (int j = 0; j < f.n_vec; j++)
        vc[j] = value_load(v, 16 * (size_t)j, f.type, f.partial ? last : 0);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec pc = vec_set(p[(uint32_t)r * KERN_BLOCK]);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            vec_add_product(&sum[r][j], pc, vc[j]);
    }
}

/* The tile's sums over its split, positions in ascending order. */
INLINE void value_add(const struct value_tile *t, struct value_form f)
{
    const struct item *it = t->it;
    const size_t element = kv_element_bytes(f.type), step = it->a->head_dim * element;
    struct vec sum[VALUE_ROWS][COLUMNS_MAX];
    float *home = it->sum + t->row * it->sum_stride + t->column;
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        sum[r][j] = vec_load(home + (size_t)r * it->sum_stride + 16 * j);
    for (uint32_t c = t->range.begin; c < t->range.end;) {
        const uint32_t block = c / KERN_BLOCK * KERN_BLOCK;
        const uint32_t end = t->range.end - block < KERN_BLOCK ? t->range.end : block + KERN_BLOCK;
        const char *v = item_block(it, it->a->v_cache, c) + t->column * element;
        const float *p = item_scores(it, c) + t->row * KERN_BLOCK;
        if (t->row == 0 && t->column == 0)
            item_prefetch(it, it->a->v_cache, block + KERN_BLOCK);
        for (; c < end; c++)
            value_step(sum, f, v + (c - block) * step, p + (c - block), t->last);
    }
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        vec_store(home + (size_t)r * it->sum_stride + 16 * j, sum[r][j]);
}

#define VALUE_COLUMNS (VEC_SUMS / VALUE_ROWS) /* vecs of several rows: 4, or 1 on AVX2 */

/* The columns of `rows` rows: whole tiles, then vec by vec, then the partial one. */
INLINE void value_columns(struct value_tile *t, const int rows, const enum dtype type)
{
    const uint32_t dim = t->it->a->head_dim;
    const int n_vec = rows == 1 ? COLUMNS_MAX : VALUE_COLUMNS;
    t->column = 0;
    t->last = dim % 16;
    for (; t->column + 16 * (uint32_t)n_vec <= dim; t->column += 16 * (uint32_t)n_vec)
        value_add(t, (struct value_form){rows, n_vec, 0, type});
    for (; t->column + 16 <= dim; t->column += 16)
        value_add(t, (struct value_form){rows, 1, 0, type});
    if (t->last)
        value_add(t, (struct value_form){rows, 1, 1, type});
}

INLINE void value_typed(struct value_tile *t, int rows, const enum dtype type)
{
    if (rows == VALUE_ROWS)
        value_columns(t, VALUE_ROWS, type);
    else
        value_columns(t, 1, type);
}

static void value_range(const struct item *it, uint32_t row, int rows, struct pos_range range)
{
    struct value_tile t = {.it = it, .range = range, .row = row};
    if (range.begin >= range.end)
        return;
    if (it->a->kv_dtype == DT_BF16)
        value_typed(&t, rows, DT_BF16);
    else if (it->a->kv_dtype == DT_I8)
        value_typed(&t, rows, DT_I8);
    else
        value_typed(&t, rows, DT_F32);
}

/* Rows row … row + n - 1 (at most VALUE_ROWS) over one chunk. Positions common to all rows are
 * added together; positions of some rows only, at the window's edge and at the diagonal, are added
 * row by row, before and after. */
static void value_rows(const struct item *it, uint32_t row, uint32_t n, struct pos_range chunk)
{
    struct pos_range first = item_range(it, row), last = item_range(it, row + n - 1);
    struct pos_range common = {last.begin, first.end};
    if (n == 1 || common.begin >= common.end)
        common.begin = common.end = UINT32_MAX; /* nothing: all positions lie before */
    for (uint32_t r = row; r < row + n; r++) {
        struct pos_range before = {0, common.begin};
        value_range(it, r, 1, pos_range_cut(pos_range_cut(item_range(it, r), before), chunk));
    }
    /* scratch has room for rows past the item's last, so every tile has VALUE_ROWS */
    value_range(it, row, VALUE_ROWS, pos_range_cut(common, chunk));
    for (uint32_t r = row; r < row + n; r++) {
        struct pos_range after = {common.end, UINT32_MAX};
        value_range(it, r, 1, pos_range_cut(pos_range_cut(item_range(it, r), after), chunk));
    }
}

#endif
#endif
