/* SPDX-License-Identifier: Apache-2.0 */
/* attention on 16 lanes; formula and order: ref/attention.c. Include after a vec.h.
 *
 * Rows are (token, head) pairs that share a KV head, token by token. An item of work is up to
 * KERN_ATTENTION_ROWS of them, so that K and V are read once for all; it goes in three passes:
 *
 *   scores   lanes are the 16 tokens of a block; q is broadcast. Blocks x rows of sums in registers.
 *   softmax  row by row over the blocks
 *   values   lanes are 16 columns of V; p is broadcast. Rows x columns of sums in registers, taken
 *            a chunk of blocks at a time so that the chunk's V stays in the first-level cache
 *
 * Scratch of an item:  q     [head_dim][ROWS]               transposed: broadcasts are one stream
 *                      s     [n_block of the context][ROWS][16]   scores, then p
 *                      sum   [ROWS][head_dim rounded up to 16]
 *
 * Each sum of the definition is one lane here, so tiles, chunks and which rows share an item change
 * no bit. Positions before a row's window or after its token are never multiplied in, not even by
 * 0: their K and V may be NaN. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_ATTENTION_H
#define QUIRE_KERNELS_WIDE_ATTENTION_H
#include <math.h>
#include "kernels/wide/exp.h"

#define ROWS         KERN_ATTENTION_ROWS
#define CHUNK_TOKENS 128u /* of V at a time: 16 KiB at head_dim 64 in bf16, 32 KiB at 128 */
#define COLUMNS_MAX  4    /* vecs of V in one tile */

struct item {
    const struct attention_args *a;
    const struct attention_seq *seq;
    uint32_t kv_head;
    uint32_t first, n_row; /* rows first … first + n_row - 1 of this sequence and KV head */
    uint32_t begin, end;   /* context positions of any row */
    float *q, *s, *sum;    /* scratch */
    size_t sum_stride;     /* head_dim rounded up to 16 */
};

struct span {
    uint32_t begin, end;
};

INLINE uint32_t item_group(const struct attention_args *a)
{
    return a->n_head / a->n_kv_head;
}

/* The context of row r of the item. */
INLINE struct span item_span(const struct item *it, uint32_t r)
{
    uint32_t end = it->seq->start + (it->first + r) / item_group(it->a) + 1;
    return (struct span){it->a->window && end > it->a->window ? end - it->a->window : 0, end};
}

/* Offset of row r in q (stride q_stride) or out. */
INLINE size_t item_at(const struct item *it, uint32_t r, size_t stride)
{
    uint32_t group = item_group(it->a), token = (it->first + r) / group;
    uint32_t head = it->kv_head * group + (it->first + r) % group;
    return (it->seq->row + token) * stride + (size_t)head * it->a->head_dim;
}

/* Elements from the start of the cache to the block that holds position c. */
INLINE size_t item_block(const struct item *it, uint32_t c)
{
    size_t dim = it->a->head_dim;
    if (it->a->kv_dtype == DT_BF16)
        dim = (dim + 1) / 2 * 2;
    return ((size_t)it->seq->blocks[c / KERN_BLOCK] * it->a->n_kv_head + it->kv_head) * KERN_BLOCK *
           dim;
}

INLINE float *item_scores(const struct item *it, uint32_t c)
{
    return it->s + (size_t)(c / KERN_BLOCK - it->begin / KERN_BLOCK) * ROWS * KERN_BLOCK;
}

/* ---- scores ---- */

#define SCORE_ROWS (VEC_SUMS / 2) /* two blocks at a time, so that a broadcast serves twice */

struct score_tile {
    const struct item *it;
    const void *k[2]; /* element 0 of one or two blocks of K */
    float *out[2];    /* their scores, row 0 */
    uint32_t row;     /* first row */
};

struct score_form { /* constants where they are inlined */
    int rows, n_block, bf16;
};

/* Vec d of block b; `odd` says which half of a bf16 pair d is. */
INLINE struct vec score_k(const struct score_tile *t, int bf16, uint32_t d, int odd, int b)
{
    const uint16_t *pairs = (const uint16_t *)t->k[b] + (size_t)(d - (uint32_t)odd) * KERN_BLOCK;
    if (!bf16)
        return vec_load((const float *)t->k[b] + (size_t)d * KERN_BLOCK);
    return odd ? vec_load_odd(pairs) : vec_load_even(pairs);
}

INLINE void score_step(struct vec sum[SCORE_ROWS][2], const struct score_tile *t,
                       struct score_form f, uint32_t d, int odd)
{
    const float *q = t->it->q + (size_t)d * ROWS + t->row;
    struct vec k[2];
    UNROLL
    for (int b = 0; b < f.n_block; b++)
        k[b] = score_k(t, f.bf16, d, odd, b);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec x = vec_set(q[r]);
        UNROLL
        for (int b = 0; b < f.n_block; b++)
            sum[r][b] = vec_fma(x, k[b], sum[r][b]);
    }
}

INLINE void score_add(const struct score_tile *t, struct score_form f)
{
    struct vec sum[SCORE_ROWS][2];
    const struct vec scale = vec_set(t->it->a->scale);
    const uint32_t dim = t->it->a->head_dim;
    uint32_t d = 0;
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int b = 0; b < f.n_block; b++)
        sum[r][b] = vec_set(0);
    for (; d + 1 < dim; d += 2) {
        score_step(sum, t, f, d, 0);
        score_step(sum, t, f, d + 1, 1);
    }
    if (d < dim)
        score_step(sum, t, f, d, 0);
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int b = 0; b < f.n_block; b++)
        vec_store(t->out[b] + (t->row + (uint32_t)r) * KERN_BLOCK, vec_mul(sum[r][b], scale));
}

INLINE void score_rows(const struct score_tile *t, const int rows, int n_block)
{
    const int bf16 = t->it->a->kv_dtype == DT_BF16;
    if (bf16 && n_block == 2)
        score_add(t, (struct score_form){rows, 2, 1});
    else if (bf16)
        score_add(t, (struct score_form){rows, 1, 1});
    else if (n_block == 2)
        score_add(t, (struct score_form){rows, 2, 0});
    else
        score_add(t, (struct score_form){rows, 1, 0});
}

/* A tile may do more rows than are left: q and s have room for ROWS, and what it adds is not read. */
static void score_blocks(const struct item *it, uint32_t c, int n_block)
{
    const size_t element = it->a->kv_dtype == DT_BF16 ? 2 : 4;
    struct score_tile t = {.it = it};
    for (int b = 0; b < n_block; b++) {
        uint32_t at = c + (uint32_t)b * KERN_BLOCK;
        t.k[b] = (const char *)it->a->k_cache + item_block(it, at) * element;
        t.out[b] = item_scores(it, at);
    }
    for (; t.row < it->n_row; t.row += SCORE_ROWS) {
        uint32_t left = it->n_row - t.row;
        if (left == 1)
            score_rows(&t, 1, n_block);
        else if (left <= SCORE_ROWS / 3)
            score_rows(&t, SCORE_ROWS / 3, n_block);
        else if (left <= SCORE_ROWS * 2 / 3)
            score_rows(&t, SCORE_ROWS * 2 / 3, n_block);
        else
            score_rows(&t, SCORE_ROWS, n_block);
    }
}

/* ---- softmax ---- */

/* The lanes of block c that lie in the span: all but the first `low` and from `high` on. */
INLINE struct vec only_span(struct vec v, struct vec other, uint32_t c, struct span s)
{
    if (c >= s.begin && c + KERN_BLOCK <= s.end)
        return v;
    uint32_t high = s.end - c < KERN_BLOCK ? s.end - c : KERN_BLOCK;
    uint32_t low = s.begin > c ? s.begin - c : 0;
    return vec_first(low, other, vec_first(high, v, other));
}

/* s -> p for row r; returns 1 / sum. */
INLINE float softmax_row(const struct item *it, uint32_t r)
{
    struct span span = item_span(it, r);
    const uint32_t first = span.begin / KERN_BLOCK * KERN_BLOCK;
    const struct vec least = vec_set(-INFINITY), zero = vec_set(0), cap = vec_set(it->a->soft_cap);
    struct vec max = least, sum = zero;
    for (uint32_t c = first; c < span.end; c += KERN_BLOCK) {
        float *p = item_scores(it, c) + r * KERN_BLOCK;
        struct vec v = vec_load(p);
        if (it->a->soft_cap > 0) {
            v = vec_mul(cap, vec_tanh(vec_div(v, cap)));
            vec_store(p, v);
        }
        max = vec_max(only_span(v, least, c, span), max);
    }
    const struct vec m = vec_set(vec_fold_max(max));
    for (uint32_t c = first; c < span.end; c += KERN_BLOCK) {
        float *p = item_scores(it, c) + r * KERN_BLOCK;
        struct vec v = only_span(vec_exp(vec_sub(vec_load(p), m)), zero, c, span);
        sum = vec_add(sum, v);
        vec_store(p, v);
    }
    return 1.0f / vec_fold_add(sum);
}

/* ---- values ---- */

#define VALUE_ROWS 6

/* One vec of V; `last` lanes when it is the rest of a row that is no multiple of 16. */
INLINE struct vec value_load(const void *v, size_t at, const int bf16, uint32_t last)
{
    if (bf16)
        return last ? vec_load_bf16_n((const uint16_t *)v + at, last)
                    : vec_load_bf16((const uint16_t *)v + at);
    return last ? vec_load_n((const float *)v + at, last) : vec_load((const float *)v + at);
}

struct value_form { /* constants where they are inlined */
    int rows, n_vec, bf16, partial;
};

struct value_tile {
    const struct item *it;
    struct span span; /* positions to add, within one chunk */
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
        vc[j] = value_load(v, 16 * (size_t)j, f.bf16, f.partial ? last : 0);
    UNROLL
    for (int r = 0; r < f.rows; r++) {
        struct vec pc = vec_set(p[(uint32_t)r * KERN_BLOCK]);
        UNROLL
        for (int j = 0; j < f.n_vec; j++)
            sum[r][j] = vec_fma(pc, vc[j], sum[r][j]);
    }
}

/* The tile's sums over its span, positions in ascending order. */
INLINE void value_add(const struct value_tile *t, struct value_form f)
{
    const struct item *it = t->it;
    const size_t element = f.bf16 ? 2 : 4, step = it->a->head_dim * element;
    struct vec sum[VALUE_ROWS][COLUMNS_MAX];
    float *home = it->sum + t->row * it->sum_stride + t->column;
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        sum[r][j] = vec_load(home + (size_t)r * it->sum_stride + 16 * j);
    for (uint32_t c = t->span.begin; c < t->span.end;) {
        const uint32_t block = c / KERN_BLOCK * KERN_BLOCK;
        const uint32_t end = t->span.end - block < KERN_BLOCK ? t->span.end : block + KERN_BLOCK;
        const char *v = (const char *)it->a->v_cache + (item_block(it, c) + t->column) * element;
        const float *p = item_scores(it, c) + t->row * KERN_BLOCK;
        for (; c < end; c++)
            value_step(sum, f, v + (c - block) * step, p + (c - block), t->last);
    }
    UNROLL
    for (int r = 0; r < f.rows; r++)
        UNROLL
    for (int j = 0; j < f.n_vec; j++)
        vec_store(home + (size_t)r * it->sum_stride + 16 * j, sum[r][j]);
}

#define VALUE_COLUMNS (VEC_SUMS / VALUE_ROWS) /* vecs: 4, or 1 on AVX2 */

/* The columns of `rows` rows: whole tiles, then vec by vec, then the partial one. */
INLINE void value_columns(struct value_tile *t, const int rows, const int bf16)
{
    const uint32_t dim = t->it->a->head_dim;
    t->column = 0;
    t->last = dim % 16;
    for (; t->column + 16 * VALUE_COLUMNS <= dim; t->column += 16 * VALUE_COLUMNS)
        value_add(t, (struct value_form){rows, VALUE_COLUMNS, bf16, 0});
    for (; t->column + 16 <= dim; t->column += 16)
        value_add(t, (struct value_form){rows, 1, bf16, 0});
    if (t->last)
        value_add(t, (struct value_form){rows, 1, bf16, 1});
}

static void value_span(const struct item *it, uint32_t row, int rows, struct span span)
{
    struct value_tile t = {.it = it, .span = span, .row = row};
    if (span.begin >= span.end)
        return;
    if (it->a->kv_dtype == DT_BF16 && rows == VALUE_ROWS)
        value_columns(&t, VALUE_ROWS, 1);
    else if (it->a->kv_dtype == DT_BF16)
        value_columns(&t, 1, 1);
    else if (rows == VALUE_ROWS)
        value_columns(&t, VALUE_ROWS, 0);
    else
        value_columns(&t, 1, 0);
}

INLINE struct span span_cut(struct span s, struct span by)
{
    uint32_t begin = s.begin > by.begin ? s.begin : by.begin;
    return (struct span){begin, s.end < by.end ? s.end : by.end};
}

/* Rows row … row + n - 1 (at most VALUE_ROWS) over one chunk. Their common positions go together; what only some of
 * them see, at the window's edge and at the diagonal, goes row by row, before and after. */
static void value_rows(const struct item *it, uint32_t row, uint32_t n, struct span chunk)
{
    struct span first = item_span(it, row), last = item_span(it, row + n - 1);
    struct span common = {last.begin, first.end};
    if (n == 1 || common.begin >= common.end)
        common.begin = common.end = UINT32_MAX; /* nothing: all positions lie before */
    for (uint32_t r = row; r < row + n; r++) {
        struct span before = {0, common.begin};
        value_span(it, r, 1, span_cut(span_cut(item_span(it, r), before), chunk));
    }
    /* rows past the item's last are room in scratch, so a tile is never smaller */
    value_span(it, row, VALUE_ROWS, span_cut(common, chunk));
    for (uint32_t r = row; r < row + n; r++) {
        struct span after = {common.end, UINT32_MAX};
        value_span(it, r, 1, span_cut(span_cut(item_span(it, r), after), chunk));
    }
}

/* ---- items ---- */

static void item_load_q(const struct item *it)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *q = it->a->q + (r < it->n_row ? item_at(it, r, it->a->q_stride) : 0);
        for (uint32_t d = 0; d < it->a->head_dim; d++)
            it->q[(size_t)d * ROWS + r] = r < it->n_row ? q[d] : 0;
    }
}

static void item_run(const struct item *it)
{
    const uint32_t dim = it->a->head_dim;
    float inverse[ROWS];
    item_load_q(it);
    for (uint32_t c = it->begin / KERN_BLOCK * KERN_BLOCK; c < it->end; c += 2 * KERN_BLOCK)
        score_blocks(it, c, it->end - c > KERN_BLOCK ? 2 : 1);
    for (uint32_t r = 0; r < it->n_row; r++)
        inverse[r] = softmax_row(it, r);
    memset(it->sum, 0, ROWS * it->sum_stride * sizeof *it->sum);
    for (uint32_t c = it->begin; c < it->end;) {
        uint32_t left = it->end - c;
        struct span chunk = {c, c + (left < CHUNK_TOKENS ? left : CHUNK_TOKENS)};
        for (uint32_t row = 0; row < it->n_row; row += VALUE_ROWS) {
            uint32_t n = it->n_row - row;
            value_rows(it, row, n < VALUE_ROWS ? n : VALUE_ROWS, chunk);
        }
        c = chunk.end;
    }
    for (uint32_t r = 0; r < it->n_row; r++) {
        float *out = it->a->out + item_at(it, r, it->a->out_stride);
        for (uint32_t d = 0; d < dim; d += 16) {
            struct vec y = vec_mul(vec_load(it->sum + r * it->sum_stride + d), vec_set(inverse[r]));
            vec_store_n(out + d, y, dim - d < 16 ? dim - d : 16);
        }
    }
}

/* Items of one sequence, `rows` rows each. */
INLINE uint32_t seq_items(const struct attention_args *a, const struct attention_seq *s,
                          uint32_t rows)
{
    return a->n_kv_head * ((s->n_query * item_group(a) + rows - 1) / rows);
}

/* Fewer rows an item when there would not be enough items for all threads. */
INLINE uint32_t rows_per_item(const struct attention_args *a, uint32_t nth)
{
    uint32_t rows = ROWS;
    for (; rows > 1; rows /= 2) {
        size_t n = 0;
        for (uint32_t i = 0; i < a->n_seq; i++)
            n += seq_items(a, &a->seqs[i], rows);
        if (n >= nth)
            break;
    }
    return rows;
}

INLINE void item_init(struct item *it, const struct attention_args *a, uint32_t i_seq, uint32_t i,
                      uint32_t rows)
{
    const struct attention_seq *s = &a->seqs[i_seq];
    const uint32_t n_row = s->n_query * item_group(a), per_head = (n_row + rows - 1) / rows;
    it->a = a;
    it->seq = s;
    it->kv_head = i / per_head;
    it->first = i % per_head * rows;
    it->n_row = n_row - it->first < rows ? n_row - it->first : rows;
    it->begin = item_span(it, 0).begin;
    it->end = item_span(it, it->n_row - 1).end;
}

/* Cost of an item: the positions its rows walk, plus some for having it. */
INLINE uint64_t item_cost(const struct item *it)
{
    return (uint64_t)(it->end - it->begin + KERN_BLOCK) * it->n_row;
}

/* The items in order; a thread takes those whose middle lies in its share of the total cost. */
INLINE void wide_attention(const struct attention_args *a, const struct kern_exec *x)
{
    const uint32_t rows = rows_per_item(a, x->nth);
    const size_t room = ((size_t)a->context_max + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    struct item it = {.s = x->scratch};
    uint64_t total = 0, done = 0;
    it.sum_stride = ((size_t)a->head_dim + 15) / 16 * 16;
    it.q = it.s + ROWS * room;
    it.sum = it.q + ROWS * it.sum_stride;
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            total += item_cost(&it);
        }
    for (uint32_t s = 0; s < a->n_seq; s++)
        for (uint32_t i = 0; i < seq_items(a, &a->seqs[s], rows); i++) {
            item_init(&it, a, s, i, rows);
            uint64_t cost = item_cost(&it);
            if ((done + cost / 2) * x->nth / total == x->ith)
                item_run(&it);
            done += cost;
        }
}

#undef ROWS
#endif
