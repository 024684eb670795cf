/* SPDX-License-Identifier: Apache-2.0 */
/* attention over bf16 or int8 K and V by vdpbf16ps, 32 multiply-adds an instruction; over f32 it is
 * attention_avx512. Formula and order: attention_dot.h; a sum takes pairs in ascending order, of
 * each the odd product first (ref/linear.c). */
#define DOT_KV_ROWS 12u /* FEW_ROWS: decoding takes the KV heads of a thread at once (dot_few.h) */
#define DOT_AT      KERN_BLOCK
#define DOT_STEP    2u
#include "kernels/avx512/attention_dot.h"
#include "kernels/avx512/dot_few.h"
#include "kernels/variants.h"

#define TILE_ROWS 6 /* x 4 vecs of sums; 8 registers stay for operands */
#define TILE_VECS 4

struct tile { /* out[r][16 j …] (+)= sum over pairs of w[r][pair] * line[j][pair] */
    float *out;
    size_t out_stride; /* elements */
    const char *line[TILE_VECS];
    size_t line_step; /* bytes to the next pair */
    const uint16_t *w;
    size_t w_stride; /* elements */
    uint32_t n_pair;
};

INLINE void tile_add(const struct tile *t, const int rows, const int vecs, const bool onto)
{
    __m512 sum[TILE_ROWS][TILE_VECS];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < vecs; j++)
        sum[r][j] = onto ? _mm512_loadu_ps(t->out + (size_t)r * t->out_stride + 16 * j)
                         : _mm512_setzero_ps();
    for (uint32_t i = 0; i < t->n_pair; i++) {
        __m512i line[TILE_VECS];
        UNROLL
        for (int j = 0; j < vecs; j++)
            line[j] = _mm512_loadu_si512(t->line[j] + i * t->line_step);
        UNROLL
        for (int r = 0; r < rows; r++) {
            uint32_t pair;
            memcpy(&pair, t->w + (size_t)r * t->w_stride + 2 * (size_t)i, sizeof pair);
            const __m512bh w = (__m512bh)_mm512_set1_epi32((int)pair);
            UNROLL
            for (int j = 0; j < vecs; j++)
                sum[r][j] = _mm512_dpbf16_ps(sum[r][j], (__m512bh)line[j], w);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < vecs; j++)
        _mm512_storeu_ps(t->out + (size_t)r * t->out_stride + 16 * j, sum[r][j]);
}

INLINE void tile_rows(const struct tile *t, uint32_t rows, const int vecs, const bool onto)
{
    if (rows == 1)
        tile_add(t, 1, vecs, onto);
    else if (rows == 2)
        tile_add(t, 2, vecs, onto);
    else if (rows == 3)
        tile_add(t, 3, vecs, onto);
    else if (rows == 4)
        tile_add(t, 4, vecs, onto);
    else if (rows == 5)
        tile_add(t, 5, vecs, onto);
    else
        tile_add(t, 6, vecs, onto);
}

/* All rows of the item, in tiles of equal size. */
INLINE void tile_item(const struct tile *of, uint32_t n_row, const int vecs, const bool onto)
{
    const uint32_t n_tile = (n_row + TILE_ROWS - 1) / TILE_ROWS;
    for (uint32_t i = 0; i < n_tile; i++) {
        uint32_t begin = n_row * i / n_tile, end = n_row * (i + 1) / n_tile;
        struct tile t = *of;
        t.out += begin * t.out_stride;
        t.w += begin * t.w_stride;
        tile_rows(&t, end - begin, vecs, onto);
    }
}

static void dot_scores(const struct dot_item *d, const char *const k[DOT_BLOCKS], uint32_t n_block,
                       float *s)
{
    struct tile t = {
        .out = s,
        .out_stride = DOT_TILE,
        .line_step = KERN_BLOCK * 4,
        .w = d->room.q,
        .w_stride = d->room.dim,
        .n_pair = (d->it->a->head_dim + 1) / 2,
    };
    for (uint32_t j = 0; j < n_block; j++)
        t.line[j] = k[j];
    if (n_block == 4)
        tile_item(&t, d->it->n_row, 4, false);
    else if (n_block == 3)
        tile_item(&t, d->it->n_row, 3, false);
    else if (n_block == 2)
        tile_item(&t, d->it->n_row, 2, false);
    else
        tile_item(&t, d->it->n_row, 1, false);
}

static void dot_values(const struct dot_item *d, const uint16_t *p, const uint16_t *v, uint32_t n)
{
    struct tile t = {
        .out_stride = d->room.dim,
        .line_step = (size_t)d->room.dim * 4,
        .w = p,
        .w_stride = DOT_TILE,
        .n_pair = n / 2,
    };
    uint32_t c = 0;
    for (; c + 16 * TILE_VECS <= d->room.dim; c += 16 * TILE_VECS) {
        for (uint32_t j = 0; j < TILE_VECS; j++)
            t.line[j] = (const char *)(v + 2 * (size_t)(c + 16 * j));
        t.out = d->room.sum + c;
        tile_item(&t, d->it->n_row, TILE_VECS, true);
    }
    for (; c < d->room.dim; c += 16) {
        t.line[0] = (const char *)(v + 2 * (size_t)c);
        t.out = d->room.sum + c;
        tile_item(&t, d->it->n_row, 1, true);
    }
}

static void dot_tile(const struct dot_item *d, uint32_t first, struct pos_range range)
{
    if (d->it->n_row <= FEW_ROWS)
        few_tile(d, first, range);
    else
        dot_tile_pairs(d, first, range);
}

static void dot_begin(const struct dot_item *d)
{
    (void)d;
}

void attention_avx512_bf16(const struct attention_args *a, const struct kern_exec *x)
{
    if (a->kv_dtype == DT_F32)
        attention_avx512(a, x);
    else
        attention_dot(a, x);
}

void attention_join_avx512_bf16(const struct attention_join_args *a, const struct kern_exec *x)
{
    if (a->of->kv_dtype == DT_F32)
        attention_join_avx512(a, x);
    else
        attention_dot_join(a->of, x);
}
